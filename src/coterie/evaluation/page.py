"""The page of an evaluation: the verdict, a figure of the estimates, the estimates over time, the numbers."""

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.evaluation.evaluate import Evaluation, Result, Window
from coterie.evaluation.words import LOGGED, headline, lead, table
from coterie.report.page import FAINT, INK, SERIES, figure, note, paragraphs, whole_page, write_page
from coterie.report.page import table as html_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINES = 4  # policies drawn over time; more would be hard to distinguish
HOW = (
    "IPS weighs each reward by how much likelier the policy was to show the action than the log was. SNIPS divides "
    "by the sum of the weights, which steadies it. The direct method predicts rewards with a model of the records "
    "before. Doubly robust corrects these predictions by the weighted errors; it is what the figures show. A "
    "policy's worth in records is the effective sample size: how many decisions made by the policy itself "
    "would tell as much."
)


def write_evaluation(evaluation: Evaluation, path: str | os.PathLike[str]) -> Path:
    """Write the evaluation as a page that works offline, and return its path."""
    head, body = table(evaluation)
    results, level = evaluation.results, f"{evaluation.level:.0%}"
    caption = (
        f"What each policy would have earned per decision; bars hold the truth in {level} of logs. Dotted: "
        "what was earned."
    )
    title, height = "What each policy would have earned, with intervals", 1.1 + 0.55 * len(results)
    parts = [paragraphs([lead(evaluation)]), figure(title, _ranking, results, caption, height=height)]
    if len(results[0].windows) > 1:
        title = "What the policies would have earned over time"
        caption = f"The same in parts of the log, one after the other; shaded are the {level} intervals."
        parts += ["<h2>Over time</h2>", figure(title, _over_time, results, caption, height=3.2)]
    parts += ["<h2>The numbers</h2>", html_table(head, body, ranked=True), paragraphs([HOW])]
    parts += list(map(note, evaluation.notes))
    log = evaluation.log
    kicker = f"{log.name}: {len(log.interactions):,} decisions, {len(evaluation.results)} policies"
    return write_page(path, whole_page(kicker=kicker, title=headline(evaluation), body=parts))


def _ranking(axes: "Axes", results: list[Result]) -> None:
    """Draw one line per policy, best on top: the doubly robust estimate and its interval."""
    axes.grid(axis="y", visible=False)
    axes.axvline(float(results[0].evidence.rewards.mean()), color=FAINT, linewidth=1.2, linestyle=":")
    for place, result in enumerate(results):
        value, low, high = result.best_estimate
        colour = FAINT if result.name == LOGGED else SERIES[0] if place == 0 else SERIES[1]
        wide: dict[str, Any] = {"linewidth": 7, "alpha": 0.3, "solid_capstyle": "round"}
        axes.plot([low, high], [place, place], color=colour, **wide)
        axes.plot([value], [place], "o", color=colour, markersize=9)
        beside: dict[str, Any] = {"xytext": (0, 9), "textcoords": "offset points", "ha": "center"}
        axes.annotate(f"{value:.3f}", (value, place), color=INK, fontsize=9, **beside)
    axes.set_yticks(range(len(results)), [_short(result) for result in results])
    axes.set_ylim(len(results) - 0.4, -0.7)
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.set_xlabel("earned per decision")
    axes.spines["left"].set_visible(False)


def _over_time(axes: "Axes", results: list[Result]) -> None:
    """Draw the doubly robust estimate of the first policies, and of what was shown, in each part of the log."""
    logged = [result for result in results[LINES:] if result.name == LOGGED]
    shown = [*results[: LINES - len(logged)], *logged]
    place, label = _time(results[0].windows)
    for result, colour in zip(shown, SERIES, strict=False):
        times = [place(k) for k in range(len(result.windows))]
        value, low, high = zip(*(window.value for window in result.windows), strict=True)
        axes.fill_between(times, low, high, color=colour, alpha=0.13, linewidth=0)
        axes.plot(times, value, "o-", color=colour, linewidth=2, markersize=4, label=_short(result))
    axes.set_xlabel(label)
    axes.set_ylabel("earned per decision")
    axes.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=LINES)


def _time(windows: list[Window]) -> tuple[Callable[[int], Any], str]:
    """Return a window's position on the axis, and the axis label: time if the log has times."""
    moments = [window.at for window in windows]
    known = [at for at in moments if at is not None]
    if len(known) == len(moments) and known[-1] - known[0] > 3600 * len(known):
        return lambda k: datetime.fromtimestamp(known[k], UTC), "time"
    return lambda k: windows[k].last, "decisions"


def _short(result: Result) -> str:
    return result.name if len(result.name) <= 32 else f"{result.name[:31]}…"
