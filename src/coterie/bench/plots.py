"""Cost against size, drawn from the rows of the growth suite."""

import re
from collections import defaultdict
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from coterie.bench.measuring import Measured, fit

SIZE = re.compile(r"^(?P<what>.+): (?P<name>\w+) = (?P<size>[\d,]+)$")


def draw_growth(rows: list[Measured], folder: Path) -> list[Path]:
    """Write one figure for each kind of model, with a panel for each size that was varied."""
    series: dict[str, dict[str, list[tuple[int, float, str]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        found = SIZE.match(row.name) if row.suite == "growth" else None
        if found:
            size = int(found["size"].replace(",", ""))
            series[found["what"]][found["name"]].append((size, row.value, row.unit))
    return [file for what, panels in series.items() for file in _draw(what, panels, folder)]


def _draw(what: str, panels: dict[str, list[tuple[int, float, str]]], folder: Path) -> list[Path]:
    with rc_context({"svg.hashsalt": "coterie", "font.size": 9}):
        figure = Figure(figsize=(3.0 * len(panels), 2.8), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, (name, points) in zip(axes, panels.items(), strict=True):
            sizes, costs, units = zip(*points, strict=True)
            axis.loglog(sizes, costs, marker="o", color="#c2410c")
            axis.set_title(f"{name} (exponent {fit(sizes, costs):.2f})", fontsize=9)
            axis.set_ylabel(units[0])
            axis.set_xticks(sizes, [_short(size) for size in sizes])
            axis.minorticks_off()
            axis.set_ylim(min(costs) / 3, max(costs) * 3)
            axis.spines[["top", "right"]].set_visible(False)
        figure.suptitle(f"{what} CAB: what a round costs")
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / f"growth-{what}.{kind}" for kind in ("svg", "png")]
        for file in files:
            figure.savefig(file, dpi=150, metadata={"Date": None} if file.suffix == ".svg" else None)
    return files


def _short(size: int) -> str:
    """Return a size in short form: 500, 16k, 1M."""
    for unit, letter in ((1_000_000, "M"), (1_000, "k")):
        if size >= unit:
            return f"{size / unit:.3g}{letter}"
    return str(size)
