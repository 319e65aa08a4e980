"""The commands, and what `coterie` says without one."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any

from coterie import __version__
from coterie.errors import MissingExtraError

if find_spec("typer") is None:
    raise MissingExtraError("the command line needs typer: pip install 'coterie[experiments]'")

import typer

# In the order of `coterie --help`: a function or group of that name in its own file, and the extra that it needs.
COMMANDS = {
    "compare": "experiments",
    "reproduce": "experiments",
    "contest": "experiments",
    "evaluate": "experiments",
    "data": "experiments",
    "policies": "experiments",
    "theory": "experiments",
    "advise": "experiments",
    "bench": "experiments",
    "serve": "service",
    "loadtest": "service",
    "keys": "service",
    "log": "service",
}

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


def _stand_in(name: str, extra: str, error: ImportError) -> Callable[[], None]:
    """Return a command that says what to install."""

    def command() -> None:
        raise MissingExtraError(
            f"coterie {name} needs more ({error}): pip install 'coterie[{extra}]'"
        ) from error

    command.__doc__ = f"Not installed: pip install 'coterie[{extra}]'."
    return command


for _name, _extra in COMMANDS.items():
    try:
        _part: Any = getattr(import_module(f"coterie.cli.{_name}"), _name)
    except ImportError as _error:
        app.command(_name)(_stand_in(_name, _extra, _error))
        continue
    if isinstance(_part, typer.Typer):
        app.add_typer(_part, name=_name)
    else:
        app.command(_name)(_part)
