"""The page of `coterie theory watch`: a run beside the truth."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.arrays import Floats
from coterie.report.page import FAINT, SERIES, figure, paragraphs, table, whole_page, write_page
from coterie.theory.watching import WatchedRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = 400


def write_watched(seen: WatchedRun, name: str, path: str | os.PathLike[str]) -> Path:
    """Write the comparison with the truth as a page, and return its path."""
    settled = (
        f"From round {seen.settled:,} on, the neighbourhoods CAB decides with are the true ones."
        if seen.settled is not None
        else "To the end, some of the neighbourhoods CAB decides with are not the true ones."
    )
    tail = slice(-max(1, seen.n_rounds // 10), None)
    words = [
        f"In the last tenth of {seen.n_rounds:,} rounds, {100 * seen.precision[tail].mean():.0f} of 100 users whom "
        f"CAB takes for neighbours are, and it finds {100 * seen.recall[tail].mean():.0f} of 100 who are.",
        f"Corollary 1 replaces the number of users, {seen.n_users}, by the number of groups per item: here "
        f"{seen.clusters:.1f}. The sum of 1/|N| it rests on is {seen.inverse_sizes[-1]:.1f}; if users and contexts "
        f"come evenly it is about {seen.n_rounds * seen.clusters / seen.n_users:.1f}.",
        _bound_words(seen),
    ]
    shares = "Precision and recall of the chosen item's neighbourhood, running mean."
    sizes = "The sum of 1/|N| so far, beside T·E[m]/n."
    lost = "Regret so far. Dashed: the proved bound, if it fits in."
    body = [
        paragraphs(words),
        figure("Precision and recall over time", _shares, seen, shares),
        figure("The sum of inverse neighbourhood sizes over time", _sizes, seen, sizes, height=2.8),
        figure("Regret over time", _lost, seen, lost, height=2.8),
        table(("", ""), [(key, _text(value)) for key, value in seen.summary().items()]),
    ]
    kicker = f"CAB on {name}: {seen.n_users} users, α(T) = {seen.alpha:.3g}, γ = {seen.gamma:g}"
    return write_page(path, whole_page(kicker=kicker, title=settled, body=body))


def _bound_words(seen: WatchedRun) -> str:
    lost, bounds = seen.regret.sum(), seen.bounds()
    if bounds is None:
        return (
            f"CAB lost {lost:.1f}. With α(T) = {seen.alpha:.2f} the theorem does not apply: it needs bounds that "
            "hold, and so at least 1."
        )
    hard = seen.hard
    if hard is not None and hard.lower == seen.n_rounds:
        return (
            f"CAB lost {lost:.1f}. Theorem 1 promises no more than {bounds[0].total:,.0f}, which says nothing: the "
            "hardness of these rounds is their number, because every direction can be avoided in all their lists."
        )
    return f"CAB lost {lost:.1f}; Theorem 1 allows {bounds[0].total:,.0f}, the proved bound {bounds[1].total:,.0f}."


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(part)}" for key, part in value.items())
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def _thin(values: Floats) -> tuple[Floats, Floats]:
    rows = np.unique(np.linspace(0, len(values) - 1, POINTS).astype(np.int64))
    return (rows + 1).astype(np.float64), values[rows]


def _running(values: Floats) -> Floats:
    width = max(1, len(values) // 50)
    sums = np.cumsum(np.concatenate([np.zeros(width), values]))
    counts = np.minimum(np.arange(1, len(values) + 1), width)
    return np.asarray((sums[width:] - sums[:-width]) / counts, dtype=np.float64)


def _shares(axes: "Axes", seen: WatchedRun) -> None:
    axes.plot(*_thin(_running(seen.precision)), color=SERIES[0], label="precision")
    axes.plot(*_thin(_running(seen.recall)), color=SERIES[1], label="recall")
    axes.set_ylim(0, 1.05)
    axes.set_xlabel("round")
    axes.legend(frameon=False)


def _sizes(axes: "Axes", seen: WatchedRun) -> None:
    axes.plot(*_thin(seen.inverse_sizes), color=SERIES[0], label="Σ 1/|N|")
    end = seen.n_rounds * seen.clusters / seen.n_users
    axes.plot([0, seen.n_rounds], [0, end], "--", color=FAINT, label="T·E[m]/n")
    axes.set_xlabel("round")
    axes.legend(frameon=False)


def _lost(axes: "Axes", seen: WatchedRun) -> None:
    bounds, lost = seen.bounds(), np.cumsum(seen.regret)
    axes.plot(*_thin(lost), color=SERIES[0])
    if bounds is not None and bounds[1].total < 20 * lost[-1]:
        axes.axhline(bounds[1].total, color=FAINT, linestyle="--")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("round")
