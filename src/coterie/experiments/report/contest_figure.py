"""The contest as one picture: a line per dataset, a dot per policy; further left is better."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coterie.experiments.study.contest import FIRST, RANDOM, ContestLine
from coterie.experiments.study.paper_figures import PLAIN, plain_style, write_figure
from coterie.report.page import FAINT, GRID, INK, SERIES

OURS, OUTSIDE = FIRST
GREY = "#b9bcc4"
LETTER = 0.082  # inches, about
HEIGHT = 0.4  # inches per line
ABOVE, BELOW = 0.95, 0.62  # inches
EDGE = 1.25  # what is further right is drawn there, as a triangle
CAPTION = "What each policy loses, over what choosing at random loses"


def save_contest(lines: Sequence[ContestLine], path: Path) -> list[Path]:
    """Draw the lines with Hierarchical (all, if there are none) as path.svg and path.png.

    Without a result beside RAN's there is nothing to draw, and no file is written.
    """
    shown = [line for line in lines if OURS in line.scores] or list(lines)
    shown = [line for line in shown if _dots(line)]
    if not shown:
        return []
    with rc_context(plain_style()):
        figure = _draw(shown)
    return write_figure(figure, path, CAPTION, ("svg", "png"))


def _dots(line: ContestLine) -> dict[str, float]:
    """Return the relative loss of each policy except RAN."""
    lost = {name: line.lost(name) for name in line.scores if name != RANDOM}
    return {name: value for name, value in lost.items() if value is not None}


def _draw(lines: Sequence[ContestLine]) -> Figure:
    ink, faint, grid, accent = (PLAIN[colour] for colour in (INK, FAINT, GRID, SERIES[0]))
    tall = ABOVE + HEIGHT * len(lines) + BELOW
    left = max(2.6, 0.25 + LETTER * max(len(_name(line)) for line in lines))
    wide = left + 5.6
    figure = Figure(figsize=(wide, tall))
    axes: Any = figure.add_axes(
        (left / wide, BELOW / tall, 1 - (left + 0.25) / wide, HEIGHT * len(lines) / tall)
    )
    most = max(value for line in lines for value in _dots(line).values())
    edge = min(max(1.06, 1.03 * most), EDGE)
    for place, line in enumerate(lines):
        dots = {name: min(value, edge) for name, value in _dots(line).items()}
        rivals = {name: value for name, value in dots.items() if name != OURS}
        best = line.best(rivals)
        axes.axhline(place, color=grid, linewidth=0.8, zorder=0)
        for name, value in rivals.items():
            named = name in (best, OUTSIDE)  # on top, so that the large dot hides none of them
            colour, size, order = (ink, 6.5, 4) if named else (GREY, 5.5, 2)
            shape = ">" if value == edge else "o"
            axes.plot(value, place, shape, color=colour, markersize=size, zorder=order, clip_on=False)
        for name, above in _labelled(best, rivals):
            _label(axes, line.scores[name].title, (rivals[name], place), above=above, colour=ink)
        if OURS in dots:
            axes.plot(dots[OURS], place, "o", color=accent, markersize=11, zorder=3)
    axes.axvline(1, color=faint, linewidth=1.2, linestyle=(0, (3, 3)), zorder=1)
    axes.set_yticks(range(len(lines)), [_name(line) for line in lines], color=ink)
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.set_xlim(0, edge)
    axes.spines["left"].set_visible(False)
    meaning = "lost, where choosing at random loses 1; for click-through rates, RAN's over the policy's"
    axes.set_xlabel(meaning, fontsize=8.5)
    beyond = f" Triangle: more than {EDGE:g}." if most > EDGE else ""
    _title(figure, wide, tall, any(OURS in line.scores for line in lines), beyond)
    figure.draw_without_rendering()  # while the style is set
    return figure


def _labelled(best: str | None, rivals: dict[str, float]) -> list[tuple[str, bool]]:
    """Return which names are written, and whether above the dot: the best rival above, VW below."""
    labels = [] if best is None else [(best, True)]
    return labels + [(OUTSIDE, False)] * (OUTSIDE in rivals and best != OUTSIDE)


def _label(axes: Axes, text: str, at: tuple[float, float], *, above: bool, colour: str) -> None:
    is_far = at[0] > 0.8  # there, centred text would leave the picture
    axes.annotate(
        text, at, xytext=(6 if is_far else 0, 5 if above else -5), textcoords="offset points", fontsize=7.5,
        color=colour, ha="right" if is_far else "center", va="bottom" if above else "top",
    )  # fmt: skip


def _name(line: ContestLine) -> str:
    return line.title.replace(" (generated twin)", " (generated)").replace(
        " (built-in world)", " (generated)"
    )


def _title(figure: Figure, wide: float, tall: float, with_us: bool, beyond: str) -> None:
    ink, faint, accent = (PLAIN[colour] for colour in (INK, FAINT, SERIES[0]))
    top = 1 - 0.30 / tall
    large: dict[str, Any] = {"fontsize": 14, "va": "center"}
    if with_us:
        figure.text(0.17 / wide, top, "Hierarchical", color=accent, fontweight="bold", **large)
        figure.text(1.58 / wide, top, "against every rival, on every dataset", color=ink, **large)
    else:
        figure.text(0.17 / wide, top, "Every policy, on every dataset", color=ink, **large)
    words = "← further left is better. Dark: the best rival, and Vowpal Wabbit. Grey: the others." + beyond
    figure.text(0.17 / wide, 1 - 0.62 / tall, words, color=faint, fontsize=9.5, va="center")
