"""The figures of a comparison, drawn from traces."""

import os
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import polars as pl
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import StrMethodFormatter

from coterie.arrays import Bools, Floats, Ints
from coterie.experiments.study.compare import Comparison
from coterie.experiments.study.paper_figures import DASHES, PLAIN, STYLE
from coterie.report.page import FAINT, GRID, INK, SERIES, VARIABLES, as_svg


def curves_figure(comparison: Comparison, *, narrow: bool = False) -> str:
    """Draw each policy's regret (for a log: click-through rate) against time, mean and spread over runs.

    `narrow` is for phones: the figure is smaller, so letters are larger relative to the lines.
    """
    is_log = comparison.plan.is_log
    with rc_context(STYLE):
        figure = Figure(figsize=(4.1, 4.1) if narrow else (6.6, 3.9))
        axes = figure.add_axes((0.15, 0.13, 0.48, 0.8) if narrow else (0.1, 0.13, 0.67, 0.8))
        ends: list[tuple[float, str, str]] = []
        for result in comparison.results:
            place = comparison.plan.specs.index(result.spec)
            colour, dash = SERIES[place % len(SERIES)], DASHES[place // len(SERIES) % len(DASHES)]
            time, mean, spread = result.curve
            if not len(time):
                continue
            axes.fill_between(time, mean - spread, mean + spread, color=colour, alpha=0.16, linewidth=0)
            axes.plot(time, mean, dash, color=colour, linewidth=2.0, solid_capstyle="round")
            ends.append((float(mean[-1]), result.spec.title, colour))
        axes.set_xlabel("kept records" if is_log else "rounds")
        title = "click-through rate (higher is better)" if is_log else "total lost so far (lower is better)"
        axes.set_title(title, loc="left", fontsize=10, color=FAINT)
        axes.grid(axis="y", color=GRID, linewidth=0.8)
        axes.spines["left"].set_visible(False)
        axes.set_axisbelow(True)
        axes.margins(x=0)
        if is_log:
            _zoom(axes, [result.curve.mean for result in comparison.results])
        else:
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.locator_params(axis="x", nbins=2 if narrow else 5)
        axes.locator_params(axis="y", nbins=6)
        _label_ends(axes, ends)
        return as_svg(figure, f"Curves over time, one for each policy{' (narrow)' if narrow else ''}", STYLE)


def write_curves(comparison: Comparison, path: str | os.PathLike[str]) -> FilePath:
    """Write the curves as a separate SVG file on white, and return its path."""
    path, text = FilePath(path), curves_figure(comparison)
    for colour, variable in VARIABLES.items():
        text = text.replace(f"var({variable})", PLAIN[colour])
    head, _, rest = text.partition(">")
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    head = head.replace("<svg", f'<svg {names} font-family="sans-serif" width="660"', 1)
    path.write_text(f'{head}>\n <rect width="100%" height="100%" rx="8" fill="#ffffff"/>{rest}\n')
    return path


def _zoom(axes: Axes, means: list[Floats]) -> None:
    """Show the range after the first tenth of the curves; averages of a few records vary too much."""
    later = np.concatenate([mean[len(mean) // 10 :] for mean in means])
    if len(later):
        low, high = float(later.min()), float(later.max())
        margin = max(0.15 * (high - low), 1e-6)
        axes.set_ylim(low - margin, high + margin)


def _label_ends(axes: Axes, ends: list[tuple[float, str, str]]) -> None:
    """Write each curve's name at its end, moved up if names would overlap."""
    low, high = axes.get_ylim()
    step, last = (high - low) * 0.065, float("-inf")
    for height, title, colour in sorted(ends):
        last = max(height, last + step)
        name, _, settings = title.partition(" (")
        text = f"{name}\n({settings}" if settings else name
        style: dict[str, Any] = {"color": colour, "fontsize": 9, "fontweight": "bold", "va": "center"}
        place = ("axes fraction", "data")
        axes.annotate(text, (1.015, last), xycoords=place, annotation_clip=False, **style)
        last += step if settings else 0


def neighbourhood_figures(picture: pl.DataFrame, title: str) -> list[tuple[str, str]]:
    """Draw the neighbours per item: the policy's estimate and, if known, the truth."""
    items = picture.select("item", "family").unique(maintain_order=True)
    families = items["family"].to_numpy()
    drawn = []
    for column, caption in (("found", f"What {title} found out"), ("truth", "The truth")):
        if picture[column].null_count():
            continue
        near, right = (
            picture[name].to_numpy().reshape(len(items), -1).T  # (users, items)
            for name in (column, column if picture["truth"].null_count() else "truth")
        )
        drawn.append((caption, _matrix(near, right, families, caption)))
    return drawn


def _matrix(near: Bools, right: Bools, families: Ints, caption: str) -> str:
    """Draw a square per user and item: full if correctly `near`, pale if wrongly, empty if not near."""
    n_users, n_items = near.shape
    left = np.arange(n_items) + 0.9 * np.cumsum(np.diff(families, prepend=families[:1]) != 0)
    width = float(left[-1]) + 1
    names = list(dict.fromkeys(families.tolist()))
    above, below, beside = 0.32 if len(names) > 1 else 0.08, 0.32, 0.3  # inches
    high = min(4.2, 3.9 * 0.42 * n_users / width)  # of the squares
    with rc_context(STYLE):
        figure = Figure(figsize=(4.2, above + high + below))
        tall = above + high + below
        axes = figure.add_axes((beside / 4.2, below / tall, 1 - beside / 4.2, high / tall))
        axes.set_xlim(0, width)
        axes.set_ylim(n_users, 0)
        axes.axis("off")
        for shade, alpha, filled in (
            (GRID, 1.0, ~near),
            (SERIES[0], 1.0, near & right),
            (SERIES[0], 0.4, near & ~right),
        ):
            cells = [_cell(left[item], user) for user, item in np.argwhere(filled)]
            if cells:
                path = Path.make_compound_path(*cells)
                axes.add_patch(PathPatch(path, facecolor=shade, alpha=alpha, linewidth=0))
        for number, family in enumerate(names if len(names) > 1 else []):
            columns = left[families == family]
            middle = ((columns[0] + columns[-1] + 1) / 2, 0)
            _note(axes, f"family {chr(65 + number % 26)}", middle, (0, 8), INK)
        _note(axes, "items, surest first →", (width / 2, n_users), (0, -16), FAINT)
        _note(axes, "users →", (0, n_users / 2), (-12, 0), FAINT, rotation=90, va="center")
        return as_svg(figure, caption, STYLE)


def _note(
    axes: Axes, text: str, at: tuple[float, float], off: tuple[int, int], colour: str, **style: Any
) -> None:
    style |= {"xytext": off, "textcoords": "offset points", "ha": "center", "color": colour}
    axes.annotate(text, at, annotation_clip=False, **style)


def _cell(x: float, y: float) -> Path:
    return Path([(x, y), (x + 0.92, y), (x + 0.92, y + 0.86), (x, y + 0.86), (x, y)], closed=True)
