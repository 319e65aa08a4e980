"""The page of `coterie advise`."""

import os
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coterie.advice.advice import Advice
from coterie.advice.distances import Distances
from coterie.advice.groups import Groups
from coterie.advice.ranking import PRIOR
from coterie.advice.sharing import Sharing
from coterie.report.page import FAINT, SERIES, figure, note, paragraphs, table, whole_page, write_page

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def write_advice(advice: Advice, path: str | os.PathLike[str]) -> Path:
    """Write the advice as a page that works offline, and return its path."""
    title, *rest = advice.words()
    records = advice.records
    better = "How often the better of two is found, by how many records of each user are known."
    apart = (
        "Mean distance from the models of the users served around a time to all others' (the paper's Figure 3). "
        "Dashed: what two halves of one user's own records differ by, on half the data."
    )
    by_time = "Mean distance of the served users' models to all others over time"
    body = [
        paragraphs(rest),
        "<h2>What others know about a user</h2>",
        figure("Score by records of each user, for four ways to predict", _curves, advice.sharing, better),
        "<h2>Groups of users</h2>",
        _groups(advice.groups),
        "<h2>How far apart users are</h2>",
        figure(by_time, _distances, advice.distances, apart, height=2.8),
        "<h2>How to start</h2>",
        paragraphs(["As a policy of coterie compare, and in Python:"]),
        f"<pre>{escape(advice.command())}\n{escape(advice.code())}</pre>",
        "<h2>The log</h2>",
        _log(advice),
        *map(note, records.notes),
    ]
    kicker = f"{advice.name}: {records.n_users:,} users, {len(records.users):,} records"
    return write_page(path, whole_page(kicker=kicker, title=title, body=body))


def _curves(axes: "Axes", shared: Sharing) -> None:
    [prior] = [one.scores for one in shared.standings if one.policy == PRIOR]
    for name, scores, colour in (
        ("learned prior (Hierarchical)", prior, SERIES[0]),
        ("own records only", shared.own, SERIES[1]),
        ("everyone as one", shared.everyone, SERIES[2]),
        ("neighbours (CAB)", shared.neighbours, SERIES[3]),
    ):
        axes.plot(shared.first, scores, "o-", color=colour, label=name, linewidth=2, markersize=4)
    axes.axhline(0.5, color=FAINT, linewidth=1, linestyle=":")
    axes.set_xscale("log", base=2)
    axes.set_xticks(shared.first, [str(size) for size in shared.first])
    axes.set_xlabel("records of each user")
    axes.set_ylabel("finds the better of two")
    axes.legend(frameon=False)


def _groups(groups: Groups | None) -> str:
    if groups is None:
        return paragraphs(["No item was shown often enough to the same users to count groups."])
    caption = (
        f"{groups.items} items, five random halvings of the data: {groups.number:.1f} groups on average "
        f"({groups.low:.1f} to {groups.high:.1f}), {groups.gap:.2f} apart "
        f"({groups.gap_low:.2f} to {groups.gap_high:.2f})."
    )
    return figure("Share of items by number of groups", _bars, groups, caption, height=2.6)


def _bars(axes: "Axes", groups: Groups) -> None:
    axes.bar(np.arange(1, len(groups.counts) + 1), groups.counts / groups.counts.sum(), color=SERIES[0])
    axes.set_xlabel("groups of users that the data distinguishes")
    axes.set_ylabel("share of items")


def _distances(axes: "Axes", found: Distances) -> None:
    axes.plot(found.times, found.served, color=SERIES[0], linewidth=1)
    axes.axhline(found.within, color=SERIES[1], linestyle="--", linewidth=1.5)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("record")
    axes.set_ylabel("mean distance")


def _log(advice: Advice) -> str:
    n = advice.numbers()
    per_user = n["records_per_user"]
    rows = [
        ("users", f"{n['users']:,}"),
        ("records", f"{n['records']:,}"),
        ("items", f"{n['items']:,}"),
        ("features", "none, items are known by id" if n["features"] is None else str(n["features"])),
        (
            "records per user",
            f"{per_user['median']:g} in the middle, {per_user['least']:,} to {per_user['most']:,}",
        ),
        ("mean payoff", f"{n['mean_payoff']:.3f}"),
        ("mean distance, all records", f"{n['distances']['mean']:.3f}"),
        ("mean distance, paying records only", f"{n['distances']['paid_only']:.3f}"),
        (
            "gain by sharing",
            f"{n['sharing']['gain']:.4f} ({n['sharing']['low']:.4f} to {n['sharing']['high']:.4f})",
        ),
    ]
    return table(("", ""), rows)
