"""Metrics from traces. Regret is the loss from not always showing the best candidate.

A log does not contain the best candidate's payoff: there, regret is NaN, and the measure is the click-through
rate (mean payoff of the kept records, those where the policy picked the served item).
"""

from typing import NamedTuple

import numpy as np
import polars as pl

from coterie.arrays import Floats, Ints
from coterie.evaluation.verdict import Kept


class Summary(NamedTuple):
    """The metrics of one run."""

    n_rounds: int
    kept: int  # rounds whose payoff is known
    payoff: float  # the sum of payoffs
    ctr: float  # the mean payoff of the kept rounds
    regret: float  # the sum of losses
    share_of_best: float  # expected payoff of the choices, divided by that of the best candidates
    early_loss: float  # regret per round, in the first fifth of the rounds
    late_loss: float  # regret per round, in the last fifth
    neighbours: float  # mean number of users whose models a decision used
    share_rate: float  # share of the learned payoffs that updated more than one user
    shared_with: float  # how many users such a payoff updated, on average


def loss(trace: pl.DataFrame) -> Floats:
    """Return the loss of each round: (n_rounds,)."""
    return (trace["best"] - trace["expected"]).to_numpy()


def cumulative_regret(trace: pl.DataFrame) -> Floats:
    """Return the regret up to and including each round: (n_rounds,)."""
    return np.cumsum(loss(trace))


def cumulative_ctr(trace: pl.DataFrame) -> Floats:
    """Return the mean payoff of the records kept so far, after each kept one: (kept,)."""
    kept = trace["payoff"].to_numpy()
    kept = kept[~np.isnan(kept)]
    return np.cumsum(kept) / np.arange(1, len(kept) + 1)


def summarise(trace: pl.DataFrame) -> Summary:
    """Return the metrics of a run; NaN if there is nothing to average."""
    lost, n_rounds = loss(trace), len(trace)
    fifth = max(1, n_rounds // 5)
    kept = trace.filter(pl.col("payoff").is_not_nan())
    shared = kept.filter(pl.col("updated") > 1)
    return Summary(
        n_rounds=n_rounds,
        kept=len(kept),
        payoff=float(kept["payoff"].sum()),
        ctr=_mean(kept["payoff"]),
        regret=float(lost.sum()),
        share_of_best=_over(float(trace["expected"].sum()), float(trace["best"].sum())),
        early_loss=float(lost[:fifth].sum()) / fifth,
        late_loss=float(lost[-fifth:].sum()) / fifth,
        neighbours=_mean(trace["neighbours"]),
        share_rate=_over(len(shared), len(kept)),
        shared_with=_mean(shared["updated"]),
    )


def kept_records(trace: pl.DataFrame) -> Kept:
    """Return the records that a run on a log kept, with their payoffs."""
    kept = trace.filter(pl.col("payoff").is_not_nan())
    return Kept(kept["round"].to_numpy(), kept["payoff"].to_numpy())


class Spread(NamedTuple):
    """A number over several runs: its mean and its standard deviation (NaN for a single run)."""

    mean: float
    spread: float


def over_runs(values: list[float]) -> Spread:
    """Return the mean and spread of one number per run."""
    if not values:
        return Spread(float("nan"), float("nan"))
    return Spread(float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else float("nan"))


def shown(value: float, spread: float, shape: str) -> str:
    """Return a number as text with its spread or error, if there is one."""
    return f"{value:{shape}} ± {spread:{shape}}" if spread == spread else f"{value:{shape}}"


class Curve(NamedTuple):
    """A quantity against time: mean and spread over runs."""

    time: Ints  # (points,) rounds, or kept records
    mean: Floats  # (points,)
    spread: Floats  # (points,)


def curve(runs: list[Floats], n_points: int = 160) -> Curve:
    """Reduce the runs' series to at most `n_points` equally spaced times, and average over the runs."""
    length = min(len(run) for run in runs)
    if not length:
        return Curve(np.zeros(0, np.int64), np.zeros(0), np.zeros(0))
    time = np.unique(np.linspace(1, length, min(n_points, length)).round().astype(np.int64))
    values = np.array([run[time - 1] for run in runs])  # (runs, points)
    spread = values.std(axis=0, ddof=1) if len(runs) > 1 else np.zeros(len(time))
    return Curve(time, values.mean(axis=0), spread)


def ratio_to_random(regrets: list[float], random: list[float]) -> Spread:
    """Return regret divided by RAN's regret in the same run: 1 is random, 0 is perfect."""
    return over_runs([_over(own, blind) for own, blind in zip(regrets, random, strict=True)])


def _mean(values: pl.Series) -> float:
    return float(values.to_numpy().mean()) if len(values) else float("nan")


def _over(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")
