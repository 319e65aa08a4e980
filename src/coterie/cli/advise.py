"""`coterie advise`: what a log says about sharing."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer


def advise(
    log: Annotated[
        str,
        typer.Argument(
            help="A .csv or .parquet file with the columns user, payoff, and item or features (a list, or "
            "columns starting with feature)."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the page and the numbers.")] = Path("out/advise"),
    splits: Annotated[int, typer.Option(help="Random splits of the data to average over.", min=1)] = 3,
    seed: Annotated[int, typer.Option(help="Seed of the splits.", min=0)] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the numbers as JSON on stdout, and nothing else there.")
    ] = False,
) -> None:
    """Say whether users of a log should learn from each other, and how to start.

    Counts users and records, estimates how many groups of users there are per item and how strongly they differ, and
    finds out on records kept aside whether other users' feedback helps to predict a user's payoffs.
    """
    from coterie.theory.advice import advise as look_into
    from coterie.theory.advice_page import write_advice
    from coterie.theory.records import read_log

    advice = look_into(read_log(log), name=Path(log).name, splits=splits, seed=seed)
    page = write_advice(advice, out / "advice.html")
    numbers = json.dumps(advice.numbers(), indent=2)
    (out / "advice.json").write_text(numbers)
    if as_json:
        print(numbers)
        return
    for line in advice.words():
        print(line)
    print(f"Start with: {advice.command()}")
    print(f"Page: {os.path.relpath(page)}")
