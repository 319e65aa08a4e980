"""`coterie contest`: every policy on every dataset, in one table and one picture."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from coterie.cli.shared.options import JsonOption
from coterie.experiments.report.contest_figure import save_contest
from coterie.experiments.study import overall
from coterie.experiments.study.contest import Line, put_into, read_contest, table


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
    as_json: JsonOption = False,
    into: Annotated[
        Path | None, typer.Option(help="Put the table into this page too, between its two marks.")
    ] = None,
) -> None:
    """Put the results of several reproductions into one table.

    A picture of it is drawn, too. What is printed is who came first and second on each dataset.
    """
    lines = read_contest(folders)
    verdict = overall.judge(lines)
    text = table(lines)
    if verdict is not None:
        text += f"\n{overall.words(verdict)}\n\n{overall.table(verdict)}"
    if into is not None:
        put_into(into, text)
    out.mkdir(parents=True, exist_ok=True)
    (out / "contest.md").write_text(text, encoding="utf-8")
    found = json.dumps(_plain(folders, lines, verdict), indent=2)
    (out / "contest.json").write_text(found + "\n", encoding="utf-8")
    save_contest(lines, out / "contest")
    if as_json:
        print(found)
        return
    shown = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("data", "rounds", "first", "", "second", ""):
        shown.add_column(title, justify="right" if title in ("rounds", "") else "left", no_wrap=title == "")
    for line in lines:
        shown.add_row(line.title, f"{line.n_rounds:,}", *_leaders(line))
    console = Console()
    if verdict is not None:
        console.print(overall.words(verdict), "", sep="\n", highlight=False)
    console.print(shown)
    console.print(f"Whole table: {out / 'contest.md'}", highlight=False, soft_wrap=True)


def _leaders(line: Line) -> Iterator[str]:
    """Yield name and value of the two best policies: regret over RAN's, or a log's click-through rate."""
    sign = -1 if line.is_log else 1
    for score in sorted(line.scores.values(), key=lambda score: sign * score.mean)[:2]:
        yield score.title
        yield f"{score.mean:.4f}" if line.is_log else f"{score.mean:.3f}"


def _plain(folders: list[Path], lines: list[Line], verdict: overall.Overall | None) -> dict[str, Any]:
    """Return everything as JSON values, with the sentences that pages show."""
    return {
        "folders": [folder.name for folder in folders],
        "lines": [
            {**line._asdict(), "scores": {name: score._asdict() for name, score in line.scores.items()}}
            for line in lines
        ],
        "overall": None
        if verdict is None
        else {**verdict._asdict(), "standings": [one._asdict() for one in verdict.standings]},
        "words": None if verdict is None else overall.words(verdict),
        "first_page": overall.first_page(lines),
        "where_not": overall.where_not(lines),
    }
