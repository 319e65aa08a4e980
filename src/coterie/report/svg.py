"""Matplotlib figures as SVG that lives inside a page: its colours and its font are the page's."""

import io
import re
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from coterie.report import page
from coterie.report.page import FAINT, GRID, INK

# Figures are drawn in these stand-ins; in the page they become the style sheet's variables, so that one
# picture serves light and dark.
SERIES = ["#0400a1", "#0400a2", "#0400a3", "#0400a4", "#0400a5", "#0400a6", "#0400a7"]
VARIABLES = {INK: "--ink", FAINT: "--faint", GRID: "--grid"} | {
    colour: f"--series-{number}" for number, colour in enumerate(SERIES)
}
STYLE: dict[Any, Any] = {
    **page.STYLE,
    "font.sans-serif": ["DejaVu Sans"],
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}


def as_svg(figure: Figure, title: str) -> str:
    """Return the figure as an `<svg>` element, the same bytes every time; `title` is read aloud."""
    out = io.StringIO()
    with rc_context({**STYLE, "svg.hashsalt": title}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' xmlns(:xlink)?="[^"]*"| (width|height)="[\d.]+pt"', "", text)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    return text.replace("<svg", f'<svg role="img" aria-label="{title}"', 1).strip()
