"""A page that works offline: first words, then figures, then numbers."""

import io
import os
import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from coterie.errors import MissingExtraError
from coterie.models.files import written_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

T = TypeVar("T")
# Figures are drawn in these placeholders, which become variables of the style sheet, for light and dark.
INK, FAINT, GRID = "#010101", "#020202", "#030303"
SERIES = tuple(f"#0400a{number}" for number in range(1, 8))
VARIABLES = {INK: "--ink", FAINT: "--faint", GRID: "--grid"} | {
    colour: f"--series-{number}" for number, colour in enumerate(SERIES)
}
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be searched, and uses the page's font
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.edgecolor": GRID,
    "axes.labelcolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
}


def count(n: float, thing: str) -> str:
    """Return a number with what it counts, in the singular or the plural.

    >>> count(1, "record"), count(2_000, "record")
    ('1 record', '2,000 records')
    """
    return f"{n:,.0f} {thing}{'' if round(n) == 1 else 's'}"


def figure(
    title: str, plot: Callable[["Axes", T], None], about: T, caption: str, *, height: float = 3.4
) -> str:
    """Return what `plot(axes, about)` draws on matplotlib axes, with a caption; `title` is for screen readers."""
    if find_spec("matplotlib") is None:
        raise MissingExtraError("figures need matplotlib: pip install 'coterie[experiments]'")
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        drawn = Figure(figsize=(6.6, height), layout="constrained")
        axes = drawn.add_subplot()
        axes.grid(axis="y", color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        plot(axes, about)
    return f"<figure>{as_svg(drawn, title, STYLE)}<figcaption>{escape(caption)}</figcaption></figure>"


def as_svg(figure: "Figure", title: str, style: dict[Any, Any]) -> str:
    """Return a matplotlib figure as an `<svg>` element, the same bytes every time; `title` is for screen readers.

    It has no metadata and no size, and its colours are CSS variables.
    """
    from matplotlib import rc_context

    out = io.StringIO()
    with rc_context({**style, "svg.hashsalt": title}):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    svg = out.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r' xmlns(:xlink)?="[^"]*"| (width|height)="[\d.]+pt"', "", text)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", text)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1).strip()


def paragraphs(lines: Iterable[str]) -> str:
    """Return sentences as paragraphs."""
    return "\n".join(f"<p>{escape(line)}</p>" for line in lines)


def note(text: str) -> str:
    """Return a sentence in small letters."""
    return f'<p class="note">{escape(text)}</p>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, ranked: bool = False) -> str:
    """Return a table that scrolls; the first column has names. If it is `ranked`, the first line is the best."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "\n".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    kind = "scroll ranked" if ranked else "scroll"
    return f'<div class="{kind}"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def whole_page(*, kicker: str, title: str, body: Iterable[str]) -> str:
    """Return a page that loads nothing; `body` is HTML."""
    style = files("coterie.report").joinpath("style.css").read_text("utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{style}</style></head>\n<body><main>"
        f'<p class="kicker">{escape(kicker)}</p>\n<h1>{escape(title)}</h1>\n'
        + "\n".join(body)
        + "\n</main></body></html>\n"
    )


def write_page(path: str | os.PathLike[str], text: str) -> Path:
    """Write a page atomically, and return its path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(path) as draft:
        draft.write_text(text, encoding="utf-8")
    return path
