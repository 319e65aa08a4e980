"""`coterie theory`: the paper's analysis as code."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli.shared.options import JsonOption
from coterie.data import WORLDS
from coterie.errors import ParameterError

theory = typer.Typer(no_args_is_help=True, help="The paper's analysis: how hard data is, what is guaranteed.")
FIRST_WORLD = next(iter(WORLDS))
OUT = Path("out/theory")


@theory.command()
def watch(
    given: Annotated[
        str | None,
        typer.Argument(
            metavar="WORLD", show_default=FIRST_WORLD, help=f"A built-in world: {', '.join(WORLDS)}."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Rounds to play.", min=1)] = 5000,
    alpha: Annotated[
        str,
        typer.Option(help='A number, as in the experiments, or "theory": the α(t) of the confidence lemma.'),
    ] = "0.1",
    seed: Annotated[int, typer.Option(help="Seed of the world and the run.", min=0)] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the page and the numbers.")] = OUT,
    as_json: JsonOption = False,
) -> None:
    """Play CAB and compare what it believes with the truth.

    The paper's bounds stand beside what happened.
    """
    from coterie.theory.page import write_watched
    from coterie.theory.watching import theory_alpha
    from coterie.theory.watching import watch as play

    world = given or FIRST_WORLD
    if world not in WORLDS:
        raise ParameterError(f"world is {world!r}, expected one of: {', '.join(WORLDS)}")
    place = WORLDS[world](seed)
    try:
        width = theory_alpha(place) if alpha == "theory" else float(alpha)
    except ValueError:
        raise ParameterError(f'alpha is {alpha!r}, expected a number or "theory"') from None
    seen = play(place, n_rounds=rounds, alpha=width, seed=seed)
    page = write_watched(seen, world, out / "watch.html")
    _tell(seen.summary(), out / "watch.json", page, as_json)


@theory.command()
def lemmas(
    worlds: Annotated[int, typer.Option(help="Random worlds to play.", min=1)] = 100,
    rounds: Annotated[int, typer.Option(help="Rounds in each.", min=3)] = 200,
    seed: Annotated[int, typer.Option(help="Seed of the first world; the next has seed + 1.", min=0)] = 0,
    as_json: JsonOption = False,
) -> None:
    """Check the paper's inequalities in random worlds.

    Names the seeds that break any.
    """
    from coterie.theory.lemmas import CLAIMS, check

    evidence = check(range(seed, seed + worlds), rounds)
    if as_json:
        counts = {
            name: {
                "words": CLAIMS[name],
                "checked": claim.checked,
                "broken": claim.broken,
                "seeds": claim.seeds[:20],
            }
            for name, claim in evidence.claims.items()
        }
        print(json.dumps({"worlds": evidence.worlds, "claims": counts}, indent=2))
        return
    for name, words in CLAIMS.items():
        claim = evidence.claims[name]
        mark = "holds " if evidence.holds(name) else "BREAKS"
        print(f"{mark} {claim.checked:>8,} checked, {claim.broken:,} broken  {words}")
        if claim.seeds:
            print(f"       first seeds: {', '.join(map(str, claim.seeds[:5]))}")


def _tell(numbers: object, path: Path, page: Path, as_json: bool) -> None:
    text = json.dumps(numbers, indent=2)
    path.write_text(text)
    if as_json:
        print(text)
        return
    for line in _lines(numbers):
        print(line)
    print(f"Page: {os.path.relpath(page)}")


def _lines(numbers: Any, indent: str = "") -> Iterator[str]:
    """Yield a line per number; groups of numbers are indented below their name."""
    for name, value in numbers.items():
        words = name.replace("_", " ")
        if isinstance(value, dict):
            yield f"{indent}{words}"
            yield from _lines(value, indent + "  ")
        elif isinstance(value, list):
            yield f"{indent}{words:<26}  {', '.join(map(_shown, value))}"
        else:
            yield f"{indent}{words:<26}  {_shown(value)}"


def _shown(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "–" if value is None else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.5g}"
