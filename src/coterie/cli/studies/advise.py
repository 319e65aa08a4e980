"""`coterie advise`: whether sharing feedback pays on a log."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from coterie.cli.shared.options import DataOption, JsonOption

if TYPE_CHECKING:
    from coterie.advice import Records


def advise(
    log: Annotated[
        str,
        typer.Argument(
            help="A .csv or .parquet file with the columns user, payoff, and item or features (a list, or "
            "columns named feature_…); a service's export; or the name of a dataset, such as lastfm."
        ),
    ],
    data: DataOption = None,
    out: Annotated[Path, typer.Option(help="Folder for the page and the numbers.")] = Path("out/advise"),
    splits: Annotated[int, typer.Option(help="Random splits of the data to average over.", min=1)] = 3,
    seed: Annotated[int, typer.Option(help="Seed of the splits.", min=0)] = 0,
    as_json: JsonOption = False,
) -> None:
    """Say whether users of a log should learn from each other.

    And which policy to start with. It counts users and records, estimates how many groups of users there are
    per item and how much they differ, and tests on held-out records whether other users' feedback helps to
    predict a user's payoffs, and which policy predicts them best.
    """
    from coterie.advice import advise as judge
    from coterie.advice.page import write_advice

    advice = judge(_records(log, data, seed), name=Path(log).name, splits=splits, seed=seed)
    page = write_advice(advice, out / "advice.html")
    numbers = json.dumps(advice.numbers(), indent=2)
    (out / "advice.json").write_text(numbers)
    if as_json:
        print(numbers)
        return
    console = Console()
    for line in advice.words():
        console.print(line, markup=False, highlight=False)
    command = "compare" if Path(log).suffix else "reproduce"
    console.print(f"Next: `coterie {command} {log}` plays the policies on it.", markup=False, highlight=False)
    console.print(f"Page: {os.path.relpath(page)}", markup=False, highlight=False, soft_wrap=True)


def _records(log: str, data: Path | None, seed: int) -> "Records":
    """Read a file, or the rounds of a dataset."""
    from coterie.advice import from_blocks, read_log

    if Path(log).suffix:
        return read_log(log)
    from coterie.data.datasets import open_dataset

    dataset = open_dataset(log, folder=data) if data else open_dataset(log)
    return from_blocks(dataset.blocks(dataset.n_rounds, seed))
