"""`coterie contest`: plays the games, and puts every policy on every dataset into one table and one picture."""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from coterie.arrays import JsonObject
from coterie.cli.shared import options
from coterie.cli.shared.protocol import do
from coterie.cli.studies.reproduce import open_place
from coterie.data.files import VARIABLE
from coterie.errors import CoterieError, FileError, ParameterError
from coterie.experiments import parse_specs
from coterie.experiments.report.contest_figure import save_contest
from coterie.experiments.study import contest_verdict
from coterie.experiments.study.contest import ContestLine, put_into, read_contest, table
from coterie.experiments.study.contest_games import GAMES, N_SETTINGS, PLAYERS, players
from coterie.experiments.study.protocol import PAPER_RUNS, Protocol

LEGEND = "Regret over RAN's, lower is better; in a log the click-through rate, higher is better."


def contest(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            help=f"Games to play ({', '.join(GAMES)}), or folders with a numbers.json, as `coterie reproduce` writes "
            "them; later ones count. [default: all games that take less than an hour together]",
            show_default=False,
        ),
    ] = None,
    data: options.DataOption = None,
    policies: Annotated[str, typer.Option(help="Who plays, separated by commas.")] = PLAYERS,
    runs: options.RunsOption = None,
    rounds: Annotated[int | None, typer.Option(help="Use only this many rounds of each game.")] = None,
    out: Annotated[
        Path, typer.Option(help="Folder for contest.md, contest.svg, contest.png, and a folder per game.")
    ] = Path("out/contest"),
    as_json: options.JsonOption = False,
    into: Annotated[
        Path | None, typer.Option(help="Put the table into this page too, between its two marks.")
    ] = None,
    workers: options.WorkersOption = None,
) -> None:
    """Play the games, and put all results into one table.

    A picture is made too. Every policy plays the same rounds; rivals are tuned on the first fifth. An interrupted
    contest continues where it stopped, and what was played is not played again. A game whose data are missing is
    named, with the way to get them; the others are played. What is printed is the verdict, and who came first and
    second in each game.
    """
    if data is not None:
        os.environ[VARIABLE] = str(data)  # worker processes read it
    notes = Console(stderr=True)
    folders, not_played = [], {}
    names = what or [name for name, game in GAMES.items() if not game.is_long]
    for name in names:
        if name not in GAMES and not Path(name).is_dir():
            raise ParameterError(
                f"{name!r} is no game and no folder; choose among {', '.join(GAMES)}, or name a folder with a "
                "numbers.json"
            )
    for name in names:
        if name not in GAMES:
            folders.append(Path(name))
            continue
        try:
            protocol = _protocol(name, policies, runs, rounds, out, notes)
        except CoterieError as error:
            not_played[name] = str(error).removeprefix(f"{name}: ")
            continue
        do(protocol, notes, workers, silent=True)
        folders.append(protocol.out)
    for name, why in not_played.items():
        notes.print(f"{name} was not played: {why}", highlight=False, markup=False)
    if not folders:
        raise FileError("no game could be played; the reasons are above")
    _write(folders, out, into, as_json)


def _protocol(
    name: str, policies: str, runs: int | None, rounds: int | None, out: Path, notes: Console
) -> Protocol:
    """Return the protocol of a game."""
    game = GAMES[name]
    rounds = game.n_rounds if rounds is None else rounds
    place = open_place(game.data, dict(game.settings), notes, rounds)
    able, why_not = players(parse_specs(policies), place, game.too_slow if policies == PLAYERS else ())
    return Protocol(
        place.name, place, able, out / name, n_runs=PAPER_RUNS if runs is None else runs, n_rounds=rounds,
        n_settings=N_SETTINGS, not_played=why_not,
    )  # fmt: skip


def _write(folders: Sequence[Path], out: Path, into: Path | None, as_json: bool) -> None:
    """Write table, numbers and picture, and print the verdict and the leaders."""
    lines = read_contest(folders)
    verdict = contest_verdict.judge(lines)
    text = table(lines)
    if verdict is not None:
        text += f"\n{contest_verdict.words(verdict)}\n\n{contest_verdict.table(verdict)}"
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
        console.print(contest_verdict.words(verdict), "", sep="\n", highlight=False)
    console.print(shown)
    console.print("", LEGEND, sep="\n", highlight=False)
    console.print(f"Whole table: {out / 'contest.md'}", highlight=False, soft_wrap=True)


def _leaders(line: ContestLine) -> Iterator[str]:
    """Yield name and value of the two best policies: regret over RAN's, or a log's click-through rate."""
    sign = -1 if line.is_log else 1
    for score in sorted(line.scores.values(), key=lambda score: sign * score.mean)[:2]:
        yield score.title
        yield f"{score.mean:.4f}" if line.is_log else f"{score.mean:.3f}"


def _plain(
    folders: Sequence[Path], lines: list[ContestLine], verdict: contest_verdict.Overall | None
) -> JsonObject:
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
        "words": None if verdict is None else contest_verdict.words(verdict),
        "first_page": contest_verdict.first_page(lines),
        "where_not": contest_verdict.where_not(lines),
        "ahead": contest_verdict.ahead(lines),
    }
