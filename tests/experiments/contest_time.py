"""Estimates how long `coterie contest` takes: `python -m tests.experiments.contest_time >results/contest-time.jsonl`.

Every player of every game that is not long plays the first tenth of the game's rounds, with a setting from the middle
of those that tuning tries. The second half of these rounds says what a round costs then, and both halves how that
grows; from this follows the processor time of all rounds: the first fifth for each setting, the rest in five runs.
Compiling is not counted. Each line that is printed is a JSON object of one player in one game.
"""

import itertools
import json
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from coterie.cli.studies.reproduce import open_place
from coterie.experiments import Run, Spec, parse_specs
from coterie.experiments.run.record import tables
from coterie.experiments.study.games import GAMES, N_SETTINGS, PLAYERS, SHORT, players
from coterie.experiments.study.protocol import PAPER_RUNS, Protocol
from coterie.experiments.study.tuning import paper_grid, settings

PIECES = 10  # of all rounds, one is played
FEW = 50  # rounds that are played before, so that all is compiled


def measured(run: Run) -> list[float]:
    """Return the seconds that the first and the second half of a run take."""
    passed = [time.process_time()]
    for done, _ in tables(run.make_policy(), run, 0, run.n_rounds // 2, lambda done: None):
        passed.append(time.process_time())
        if done >= run.n_rounds // 2 * 2:
            break
    return [after - before for before, after in itertools.pairwise(passed)]


def extrapolated(halves: Sequence[float], n_played: int, n_rounds: int) -> float:
    """Return the seconds of `n_rounds` rounds, from those of the two halves of the first `n_played`.

    Round t costs a + b·t, with b at least 0.
    """
    length = n_played / 2
    growth = max(0.0, (halves[1] - halves[0]) / length**2)
    start = halves[1] / length - growth * 1.5 * length
    return start * n_rounds + growth * n_rounds**2 / 2


def estimated(protocol: Protocol, spec: Spec) -> float:
    """Return the seconds of tuning and all runs of a policy, with every setting that it stands for."""
    tried = settings(spec, paper_grid(protocol.data.n_users), N_SETTINGS)
    seconds = 0.0
    for one in spec.variants() if len(tried) == 1 else [tried[len(tried) // 2]]:
        measured(Run.of(one, protocol.data, 0, FEW))
        run = Run.of(one, protocol.data, 0, protocol.total // PIECES)
        halves = measured(run)
        seconds += PAPER_RUNS * extrapolated(halves, run.n_rounds, protocol.n_reported)
        if len(tried) > 1:
            seconds += len(tried) * extrapolated(halves, run.n_rounds, protocol.n_tuned)
    return seconds


def main() -> None:
    """Print a line per player and game."""
    for name in SHORT:
        game = GAMES[name]
        place = open_place(game.data, dict(game.settings), Console(stderr=True), game.n_rounds)
        able, _ = players(parse_specs(PLAYERS), place, game.too_slow)
        protocol = Protocol(name, place, able, Path(), n_rounds=game.n_rounds)
        for spec in able:
            seconds = round(estimated(protocol, spec), 2)
            print(json.dumps({"game": name, "policy": spec.text, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
