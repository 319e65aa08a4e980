"""Grid search: every setting plays the first part of the rounds, and the best one is taken.

The grid is the paper's (section 5). A policy names values for its other parameters in `tuned`. Parameters that the
spec sets (`cab:alpha=0.1`) are not tuned.
"""

import itertools
import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from coterie.arrays import JsonObject
from coterie.errors import FileError
from coterie.experiments.run.play import play_batches
from coterie.experiments.run.runs import Run
from coterie.experiments.run.specs import KINDS, Spec, defaults, parse_spec
from coterie.experiments.study.metrics import Summary, summarise
from coterie.models.files import written_whole
from coterie.policies import Policy

STEP = 50_000  # rounds between two progress reports


class Grid(NamedTuple):
    """The values to try; a policy uses those of its own parameters."""

    alpha: Sequence[float]
    alpha2: Sequence[float]
    k: Sequence[int]


def paper_grid(n_users: int) -> Grid:
    """Return the paper's grid. The paper does not give the ratio of its progression: here it is 2."""
    clusters = [2**power for power in range(n_users.bit_length()) if 2**power < n_users]
    return Grid(
        alpha=[round(0.01 * step, 2) for step in range(21)],
        alpha2=[0.1, 0.2, 0.3, 0.4, 0.5],
        k=[*clusters, n_users],
    )


def quick_grid(n_users: int) -> Grid:
    """Return a few points of the paper's grid."""
    return Grid(
        alpha=[0.0, 0.02, 0.05, 0.1, 0.2], alpha2=[0.1, 0.5], k=sorted({1, round(n_users**0.5), n_users})
    )


def settings(spec: Spec, grid: Grid, most: int | None = None) -> list[Spec]:
    """Return the spec with every combination of the grid's values for parameters that it does not set.

    If there are more than `most`, that many of them, drawn always in the same way.
    """
    tried = {**grid._asdict(), **KINDS[spec.name].tuned}
    free = [name for name in tried if name in defaults(spec.name) and name not in spec.parameters]
    values = itertools.product(*(tried[name] for name in free))
    combined = [":".join(f"{n}={v}" for n, v in zip(free, chosen, strict=True)) for chosen in values]
    if most is not None and len(combined) > most:
        kept = np.random.default_rng(len(combined)).choice(len(combined), most, replace=False)
        combined = [combined[k] for k in sorted(kept.tolist())]
    return [parse_spec(f"{spec.text}:{text}" if text else spec.text) for text in combined]


def score(
    run: Run,
    path: Path,
    *,
    tick: Callable[[int], None] = lambda done: None,
    placed: Callable[[Policy], Any] = lambda policy: policy,
) -> None:
    """Play `run` and write its metrics as JSON; a run with a score is not played again. See `record`."""
    if path.exists():
        read_score(path, run)
        return
    policy = placed(run.make_policy())
    parts = [table for _, table in play_batches(policy, run.blocks(0), 0, STEP, tick)]
    trace = pl.DataFrame(pa.concat_tables(parts))
    content = {"run": run.header(), "summary": summarise(trace)._asdict()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as draft:
        draft.write_text(json.dumps(content))


def read_score(path: Path, run: Run) -> Summary:
    """Return what `score` wrote; it must belong to this run."""
    try:
        found: JsonObject = json.loads(path.read_text())
        if found["run"] != run.header():
            raise FileError(f"{path} is about another run; move it away")
        return Summary(**found["summary"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileError(f"{path} is damaged ({error}); remove it, and the run is played again") from error


def is_by_luck(tried: Sequence[Summary]) -> bool:
    """Return whether chance alone explains the lead of the best of these settings on a log.

    The largest of k equal rates is about √(2·log k) standard errors above their median.
    """
    rates = [one.ctr for one in tried if one.kept]
    if len(rates) < 2:
        return len(tried) > 1
    middle, kept = statistics.median(rates), statistics.median(one.kept for one in tried)
    variance = middle * (1 - middle) if middle >= 0 else 1 - middle * middle  # the largest possible
    return max(rates) - middle <= math.sqrt(2 * math.log(len(rates)) * variance / max(kept, 1))


def merit(summary: Summary, is_log: bool) -> float:
    """Return what tuning maximises: the click-through rate of a log, else minus the regret."""
    value = summary.ctr if is_log else -summary.regret
    return value if value == value else float("-inf")  # nothing kept: worst
