"""`coterie data`: get the published files, and check what is there."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from coterie.data.catalogue import SOURCES, check, source
from coterie.data.download import get
from coterie.data.files import VARIABLE, data_folder

data = typer.Typer(
    no_args_is_help=True,
    help="Get the published data files, and check what is there.",
    pretty_exceptions_enable=False,
)
Folder = Annotated[
    Path | None, typer.Option("--data", envvar=VARIABLE, help="Folder with the data files.", show_envvar=True)
]


@data.command("get")
def get_(
    dataset: Annotated[str, typer.Argument(help=f"Which one: {', '.join(SOURCES)}.")],
    folder: Folder = None,
    url: Annotated[str | None, typer.Option(help="Fetch the archive from here instead.")] = None,
) -> None:
    """Download a published archive and check it."""
    known = source(dataset)
    place = folder or Path("data")
    notes = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=notes) as progress:
        task = progress.add_task(known.title, total=None)
        files = get(
            dataset,
            place,
            url=url,
            told=lambda done, total: progress.update(task, completed=done, total=total),
        )
    for path in files:
        print(path)
    notes.print(f"Terms: {known.terms}.", highlight=False)
    if folder is None:
        notes.print(f"To use it: export {VARIABLE}={place.absolute()}", highlight=False, soft_wrap=True)


@data.command("check")
def check_(
    dataset: Annotated[str | None, typer.Argument(help="Only this one.")] = None, folder: Folder = None
) -> None:
    """Say which files are there, which are missing and which do not match; exit code 1 if any does not."""
    place = data_folder(folder)
    found = [line for name in ([dataset] if dataset else SOURCES) for line in check(name, place)]
    shown = Table(box=None, padding=(0, 2, 0, 0))
    for column in ("dataset", "file", "state", "note"):
        shown.add_column(column)
    colours = {"ok": "green", "there": "green", "missing": "yellow", "differs": "red", "unreadable": "red"}
    for line in found:
        shown.add_row(line.dataset, line.file, f"[{colours[line.state]}]{line.state}[/]", line.note)
    Console().print(shown)
    if any(line.state in ("differs", "unreadable") for line in found):
        raise typer.Exit(1)
