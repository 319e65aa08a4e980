"""The paper's three figures, as files (SVG, PDF, PNG) and inside a page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from coterie.arrays import Floats
from coterie.experiments.run.trace import read_trace
from coterie.experiments.study.compare import Comparison, PolicyResult
from coterie.experiments.study.metrics import Curve, cumulative_regret, curve
from coterie.report import page
from coterie.report.page import FAINT, GRID, INK, SERIES, as_svg

STYLE: dict[Any, Any] = {
    **page.STYLE,
    "font.sans-serif": ["DejaVu Sans"],
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}
# The colours of files, which have no page around them.
LINES = ("#c2410c", "#2563a8", "#0f8a6d", "#8e44ad", "#a37800", "#b8326e", "#8b8f99")
PLAIN = {INK: "#1d1f24", FAINT: "#555a64", GRID: "#dddad4", **dict(zip(SERIES, LINES, strict=True))}
# Metadata that leaves out the date, so that files are reproducible.
UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {"Software": None}}
DASHES = ("-", "--", ":", "-.")  # when there are more policies than colours
FROM = 50  # the ratio of two regrets is meaningless while both are almost 0


class PaperCurve(NamedTuple):
    """One curve."""

    title: str
    curve: Curve


def figure_1(comparison: Comparison) -> list[PaperCurve]:
    """Return click-through rate against kept records, a line per policy, without the first few."""
    return [PaperCurve(result.spec.title, _late(result.curve)) for result in _as_planned(comparison)]


def figure_2(comparison: Comparison) -> list[PaperCurve]:
    """Return cumulative regret over RAN's against rounds, a line per policy; empty without RAN."""
    plan = comparison.plan
    blind = next((spec for spec in plan.specs if spec.name == "random"), None)
    if blind is None:
        return []
    random = [_regret(path) for _, path in plan.tasks(blind)]
    lines = []
    for result in _as_planned(comparison):
        own = [_regret(path) for _, path in plan.tasks(result.spec)]
        ratios = [mine / theirs for mine, theirs in zip(own, random, strict=True)]
        lines.append(PaperCurve(result.spec.title, _late(curve(ratios))))
    return lines


def _late(whole: Curve) -> Curve:
    """Leave out the first points, where a ratio of small numbers varies too much."""
    if not len(whole.time):
        return whole
    late = whole.time > min(FROM, int(whole.time[-1]) - 1)
    return Curve(whole.time[late], whole.mean[late], whole.spread[late])


def _as_planned(comparison: Comparison) -> list[PolicyResult]:
    """Return the results in the order of the plan, so that each policy keeps its colour."""
    return sorted(comparison.results, key=lambda result: comparison.plan.specs.index(result.spec))


def _regret(path: Path) -> Floats:
    lost = cumulative_regret(read_trace(path, ["best", "expected"]))
    return np.where(lost > 0, lost, np.nan)


def figure_3(distances: pl.DataFrame, title: str) -> PaperCurve:
    """Return the distance of the served user to all others against rounds, averaged over neighbouring rounds."""
    values = distances["distance"].to_numpy()
    pieces = np.array_split(values, min(200, len(values)))
    ends = np.cumsum([len(piece) for piece in pieces])
    means, spreads = (np.array([f(piece) for piece in pieces]) for f in (np.mean, np.std))
    return PaperCurve(title, Curve(ends, means, spreads))


class Sheet(NamedTuple):
    """A figure: one panel or several side by side, with the same scale."""

    caption: str
    panels: Sequence[Sequence[PaperCurve]]
    x: str
    y: str
    names: Sequence[str]  # of the panels


def in_page(sheet: Sheet) -> str:
    """Return the figure as SVG in the page's colours."""
    return as_svg(_draw(sheet, {}), sheet.caption, STYLE)


def save(sheet: Sheet, path: Path) -> list[Path]:
    """Write the figure as path.svg, path.pdf and path.png, the same bytes every time."""
    return write_figure(_draw(sheet, PLAIN), path, sheet.caption, tuple(UNDATED))


def write_figure(figure: Figure, path: Path, caption: str, kinds: Sequence[str]) -> list[Path]:
    """Write a figure in PLAIN colours as files of some kinds, the same bytes every time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for kind in kinds:
        with rc_context({**plain_style(), "svg.hashsalt": caption}):
            figure.savefig(path.with_suffix(f".{kind}"), dpi=160, facecolor="white", metadata=UNDATED[kind])
    return [path.with_suffix(f".{kind}") for kind in kinds]


def plain_style() -> dict[Any, Any]:
    """Return the style of figures in files."""
    return _style(PLAIN)


def _style(palette: dict[str, str]) -> dict[Any, Any]:
    return {k: palette.get(v, v) if isinstance(v, str) else v for k, v in STYLE.items()}


def _draw(sheet: Sheet, palette: dict[str, str]) -> Figure:
    """Draw in placeholders for a page's colours, or in those of `palette`."""
    faint, grid, *series = (palette.get(colour, colour) for colour in (FAINT, GRID, *SERIES))
    n_panels = len(sheet.panels)
    with rc_context(_style(palette)):
        figure = Figure(figsize=(6.6, 4.2) if n_panels == 1 else (9.2, 3.9), layout="constrained")
        axes: Any = figure.subplots(1, n_panels, sharey=True, squeeze=False)[0]
        for place, lines, name in zip(axes, sheet.panels, sheet.names, strict=True):
            for k, line in enumerate(lines):
                colour, dash = series[k % len(series)], DASHES[k // len(series) % len(DASHES)]
                time, mean, spread = line.curve
                place.fill_between(time, mean - spread, mean + spread, color=colour, alpha=0.15, linewidth=0)
                place.plot(time, mean, dash, color=colour, linewidth=1.8, label=line.title)
            place.set_xlabel(sheet.x)
            place.set_title(name, loc="left", fontsize=10, color=faint)
            place.grid(axis="y", color=grid, linewidth=0.8)
            place.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
            place.locator_params(axis="x", nbins=5)
            place.margins(x=0)
        axes[0].set_ylabel(sheet.y)
        if any(len(lines) > 1 for lines in sheet.panels):
            handles, labels = axes[0].get_legend_handles_labels()
            figure.legend(handles, labels, frameon=False, fontsize=8, loc="outside right center")
        figure.draw_without_rendering()  # while the style is set
        return figure
