"""Estimates how long `coterie contest` takes: `python -m tests.experiments.contest_time >results/contest-time.jsonl`.

Everybody who plays a game in the default contest plays the first tenth of the game's rounds, with a setting from the
middle of those that tuning tries. Two pieces of these say what a round costs and how that grows; from this follows
the processor time of all rounds: the first fifth for each setting, the rest in five runs. Compiling is not counted.
Each line that is printed is a JSON object of one player in one game.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from coterie.cli.studies.reproduce import open_place
from coterie.experiments import Run, Spec, parse_specs
from coterie.experiments.run.play import play_batches
from coterie.experiments.study.contest_games import GAMES, N_SETTINGS, PLAYERS, SHORT, players
from coterie.experiments.study.protocol import PAPER_RUNS, Protocol
from coterie.experiments.study.tuning import paper_grid, settings

PIECES = 10  # of all rounds, one is played
FEW = 50  # rounds that are played before, so that all is compiled


class Point(NamedTuple):
    """How far a run has come."""

    rounds: int
    seconds: float


def measured(run: Run) -> list[Point]:
    """Play a run in two pieces, of whole blocks; return how many rounds and seconds had passed after each."""
    start = time.process_time()
    pieces = play_batches(run.make_policy(), run.blocks(0), 0, run.n_rounds // 2)
    return [Point(done, time.process_time() - start) for done, _ in pieces]


def extrapolated(points: Sequence[Point], n_rounds: int) -> float:
    """Return the seconds of `n_rounds` rounds, if round t costs a + b·t, with b ≥ 0; 0 if the last piece is short."""
    first, last = points[0], points[-1]
    before = first.seconds / first.rounds
    if last.rounds < 1.5 * first.rounds:
        return last.seconds / last.rounds * n_rounds
    after = (last.seconds - first.seconds) / (last.rounds - first.rounds)
    growth = max(0.0, (after - before) / (last.rounds / 2))
    return (after - growth * (first.rounds + last.rounds) / 2) * n_rounds + growth * n_rounds**2 / 2


def estimated(protocol: Protocol, spec: Spec) -> float:
    """Return the seconds of tuning and all runs of a policy, with every setting that it stands for."""
    tried = settings(spec, paper_grid(protocol.data.n_users), N_SETTINGS)
    seconds = 0.0
    for one in spec.variants() if len(tried) == 1 else [tried[len(tried) // 2]]:
        measured(Run.of(one, protocol.data, 0, FEW))
        run = Run.of(one, protocol.data, 0, protocol.total // PIECES)
        points = measured(run)
        seconds += PAPER_RUNS * extrapolated(points, protocol.n_reported)
        if len(tried) > 1:
            seconds += len(tried) * extrapolated(points, protocol.n_tuned)
    return seconds


def main() -> None:
    """Print a line per player and game; of the games that are named, or of all."""
    for name in sys.argv[1:] or SHORT:
        game = GAMES[name]
        place = open_place(game.data, dict(game.settings), Console(stderr=True), game.n_rounds)
        able, _ = players(parse_specs(PLAYERS), place, game.too_slow)
        protocol = Protocol(name, place, able, Path(), n_rounds=game.n_rounds)
        for spec in able:
            seconds = round(estimated(protocol, spec), 2)
            print(json.dumps({"game": name, "policy": spec.text, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
