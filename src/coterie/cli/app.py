"""The commands, and what `coterie` says without one."""

from importlib.util import find_spec
from typing import Annotated

from coterie import __version__
from coterie.errors import MissingExtraError

if find_spec("typer") is None:
    raise MissingExtraError("the command line needs typer: pip install 'coterie[experiments]'")

import typer

from coterie.cli.advise import advise
from coterie.cli.bench import bench
from coterie.cli.compare import compare
from coterie.cli.data import data
from coterie.cli.policies import policies
from coterie.cli.reproduce import reproduce
from coterie.cli.theory import theory

app = typer.Typer(
    name="coterie",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"coterie {__version__}")
        raise typer.Exit


@app.callback()
def coterie(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Recommenders whose users teach each other, item by item (CAB and its rivals)."""


app.command()(compare)
app.command()(reproduce)
app.add_typer(data, name="data")
app.command()(policies)
app.command()(bench)
app.command()(advise)
app.add_typer(theory, name="theory")
