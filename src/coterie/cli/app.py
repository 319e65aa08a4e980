"""The commands, and the help of `coterie`."""

from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any, NamedTuple

from coterie import __version__
from coterie.errors import MissingExtraError

if find_spec("typer") is None:
    raise MissingExtraError("the command line needs typer: pip install 'coterie[experiments]'")

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command


class CommandEntry(NamedTuple):
    """A command as `coterie --help` lists it. Its function or group is in the module of its name."""

    room: str  # the folder of the module
    extra: str  # the extra it needs
    about: str  # the first sentence of its own help


# In the order of `coterie --help`.
COMMANDS = {
    "compare": CommandEntry("studies", "experiments", "Compare policies on a world or a log of your own."),
    "advise": CommandEntry(
        "studies", "experiments", "Say whether users of a log should learn from each other."
    ),
    "tune": CommandEntry("studies", "experiments", "Find each policy's best settings on a log of your own."),
    "evaluate": CommandEntry(
        "studies", "experiments", "Estimate what other policies would have earned on a log."
    ),
    "policies": CommandEntry(
        "studies", "experiments", "List the policies with their parameters and defaults."
    ),
    "serve": CommandEntry("serving", "service", "Serve decisions over HTTP: rank and reward."),
    "keys": CommandEntry("serving", "service", "Make, list and drop the keys of a service."),
    "store": CommandEntry("serving", "service", "Check, export and repair what a service keeps."),
    "backup": CommandEntry("serving", "service", "Copy a store into one file, also while a service writes."),
    "restore": CommandEntry("serving", "service", "Check a backup, and make a store of it."),
    "loadtest": CommandEntry("serving", "service", "Put load on a service, and check that nothing is lost."),
    "reproduce": CommandEntry("studies", "experiments", "Do the paper's experiments on a dataset."),
    "data": CommandEntry("studies", "experiments", "Get the published data files, and check what is there."),
    "contest": CommandEntry("studies", "experiments", "Play the games, and put all results into one table."),
    "theory": CommandEntry(
        "studies", "experiments", "The paper's analysis: how hard data is, what is guaranteed."
    ),
    "bench": CommandEntry("studies", "experiments", "Measure speed as ratios within one run, on one core."),
}


def need_service() -> None:
    """Raise MissingExtraError unless the service extra is installed."""
    for name in ("litestar", "msgspec", "uvicorn", "prometheus_client", "pyarrow"):
        if find_spec(name) is None:
            raise MissingExtraError(f"this command needs {name}: pip install 'coterie[service]'")


# Boxes and colours in the help would need all of rich, which takes longer to import than everything else.
PLAIN: dict[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False}


class Commands(TyperGroup):
    """The commands by name. A command's module is imported when it is called, not for help and version."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = {name: TyperCommand(name, help=listed.about) for name, listed in COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is called, imported."""
        name, command, rest = super().resolve_command(ctx, args)
        if command and COMMANDS[str(name)].extra == "service" and not {"-h", "--help"} & {*rest}:
            need_service()
        return name, command and read_command(str(name)), rest


def read_command(name: str) -> Any:
    """Import a command; raise MissingExtraError, which names what to install, if that fails."""
    try:
        part = getattr(import_module(f"coterie.cli.{COMMANDS[name].room}.{name}"), name)
    except ImportError as error:
        raise MissingExtraError(
            f"coterie {name} needs more ({error}): pip install 'coterie[{COMMANDS[name].extra}]'"
        ) from error
    group = typer.Typer(add_completion=False, **PLAIN)
    if isinstance(part, typer.Typer):
        group.add_typer(part, name=name)
        return get_command(group).commands[name]  # type: ignore[attr-defined]
    group.command(name)(part)
    return get_command(group)


app = typer.Typer(
    name="coterie",
    cls=Commands,
    no_args_is_help=True,
    **PLAIN,
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
    """Contextual bandits that learn which users are alike: experiments, and a service."""
