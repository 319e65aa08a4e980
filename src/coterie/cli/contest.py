"""`coterie contest`: every policy on every dataset, in one table and one picture."""

from pathlib import Path
from typing import Annotated

import typer

from coterie.experiments.contest import put_into, read_contest, table
from coterie.experiments.contest_figure import save_contest


def contest(
    folders: Annotated[
        list[Path],
        typer.Argument(
            help="Folders with a numbers.json, as `coterie reproduce` writes them; later ones count."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for contest.md, contest.svg and contest.png.")] = Path(
        "out/contest"
    ),
    into: Annotated[
        Path | None, typer.Option(help="Put the table into this page too, between its two marks.")
    ] = None,
) -> None:
    """Make one table and one picture of the results of several reproductions."""
    lines = read_contest(folders)
    text = table(lines)
    if into is not None:
        put_into(into, text)
    out.mkdir(parents=True, exist_ok=True)
    (out / "contest.md").write_text(text, encoding="utf-8")
    save_contest(lines, out / "contest")
    print(text, end="")
