"""Matplotlib figures as SVG inside a page, with the page's colours and font."""

import io
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from coterie.report import page
from coterie.report.page import as_element

STYLE: dict[Any, Any] = {
    **page.STYLE,
    "font.sans-serif": ["DejaVu Sans"],
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}


def as_svg(figure: Figure, title: str) -> str:
    """Return the figure as an `<svg>` element, the same bytes every time; `title` is for screen readers."""
    out = io.StringIO()
    with rc_context({**STYLE, "svg.hashsalt": title}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    return as_element(out.getvalue(), title)
