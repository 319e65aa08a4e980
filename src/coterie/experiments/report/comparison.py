"""The report: one HTML file that works offline, first plain words, then numbers."""

import json
import os
import shlex
from collections.abc import Iterable
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

import coterie
from coterie.experiments.report.figures import curves_figure, neighbourhood_figures
from coterie.experiments.report.words import (
    about,
    headline,
    lead,
    picture_words,
    reasons,
    reasons_title,
    setting,
)
from coterie.experiments.run.specs import Spec
from coterie.experiments.study.compare import Comparison, Plan
from coterie.experiments.study.table import table
from coterie.report.page import SERIES, count, frame, plain_table, write_html

LOST = (
    "The curves show what each program has lost so far by not showing the best candidate, which only we "
    "know. A straight climb means it keeps losing as before; a curve that goes flat means it has learned. "
    "Shaded is the spread between runs."
)
PAID = (
    "The curves show the average payoff of the records that count, as more of them come in. Higher is better."
)
WHY = (
    "Which users help to decide for a user? Those who react to the item in the same way; for another item these "
    "may be others. Below are the neighbours of one user after the run."
)
AGAIN = "<h2>Do it again</h2>\n<p>The same command gives the same numbers.</p>\n<pre>{}</pre>"


def write_report(comparison: Comparison, path: str | os.PathLike[str]) -> Path:
    """Write the report to `path`, and return it."""
    return write_html(path, report(comparison))


def report(comparison: Comparison) -> str:
    """Return the report as HTML."""
    plan = comparison.plan
    return from_template(
        "report.html",
        plan,
        title=escape(headline(comparison)),
        kicker=escape(f"{len(plan.specs)} ways to choose, compared on {plan.name}"),
        lead=escape(lead(comparison)),
        setting=escape(setting(comparison)),
        policies=_list(comparison, [(spec, about(spec)) for spec in plan.specs]),
        curves_words=PAID if plan.is_log else LOST,
        curves=curves_figure(comparison),
        curves_narrow=curves_figure(comparison, narrow=True),
        reasons_title=escape(reasons_title(comparison)),
        reasons=_list(comparison, [pair for pair in reasons(comparison) if pair[1]]),
        picture=_picture(comparison),
        table=plain_table(*table(comparison)),
        command=command(comparison),
        world=escape(json.dumps(plan.world.parameters())),
        traces=escape(str(plan.out / "traces")),
    )


def from_template(name: str, plan: Plan, *, title: str, command: str, **values: str) -> str:
    """Return the page whose body is the template `name`, filled in; `title` and `values` are HTML."""
    folder = files("coterie.experiments.report")
    template = Template(folder.joinpath(name).read_text("utf-8"))
    values |= {
        "again": AGAIN.format(escape(command)),
        "runs": count(plan.n_runs, "run"),
        "seeds": ", ".join(map(str, plan.seeds)),
        "version": escape(coterie.__version__),
    }
    body = template.substitute(title=title, **values)
    return frame(title, folder.joinpath("style.css").read_text("utf-8"), body, "; img-src data:")


def command(comparison: Comparison) -> str:
    """Return the command that repeats this comparison."""
    plan = comparison.plan
    policies = ",".join(spec.stands_for or spec.text for spec in plan.specs)
    options = {
        "--policies": policies,
        "--rounds": plan.n_rounds,
        "--runs": plan.n_runs,
        "--seed": plan.seed,
        "--out": plan.out,
    }
    words = [plan.name, *(str(word) for pair in options.items() for word in pair)]
    return shlex.join(["coterie", "compare", *words])


def _list(comparison: Comparison, texts: Iterable[tuple[Spec, str]]) -> str:
    """Return a line per policy, with its colour in the figures."""
    lines = []
    for spec, text in texts:
        colour = f"background: var(--series-{comparison.plan.specs.index(spec) % len(SERIES)})"
        swatch = f'<i class="swatch" style="{colour}"></i>'
        lines.append(f"<li>{swatch}<b>{escape(spec.title)}</b> {escape(text)}</li>")
    return "\n".join(lines)


def _picture(comparison: Comparison) -> str:
    if comparison.picture is None or comparison.pictured is None:
        return ""
    panels = "\n".join(
        f"<figure><figcaption>{escape(caption)}</figcaption>{svg}</figure>"
        for caption, svg in neighbourhood_figures(comparison.picture, comparison.pictured.title)
    )
    words = "\n".join(f'<p class="note">{escape(text)}</p>' for text in picture_words(comparison))
    return (
        f"<h2>One user, other neighbours for other items</h2>\n<p>{WHY}</p>\n"
        f'<div class="pair">{panels}</div>\n{words}'
    )
