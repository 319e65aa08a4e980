"""The report: one HTML file that works offline, first plain words, then numbers."""

import json
import os
import shlex
from collections.abc import Iterable
from html import escape
from pathlib import Path

import coterie
from coterie.arrays import JsonObject
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
from coterie.report.page import SERIES, count, note, paragraphs, whole_page, write_page
from coterie.report.page import table as html_table

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


def write_report(comparison: Comparison, path: str | os.PathLike[str]) -> Path:
    """Write the report to `path`, and return it."""
    return write_page(path, report(comparison))


def report(comparison: Comparison) -> str:
    """Return the report as HTML."""
    plan = comparison.plan
    curves = (
        f'<div class="wide">{curves_figure(comparison)}</div>'
        f'<div class="narrow">{curves_figure(comparison, narrow=True)}</div>'
    )
    spread = f"Mean ± spread (standard deviation) over {count(plan.n_runs, 'run')}, best first."
    traces = f"Traces, round by round, are in {plan.out / 'traces'}."
    body = [
        f'<p class="lead">{escape(lead(comparison))}</p>',
        "<h2>What was tried</h2>",
        paragraphs([setting(comparison)]),
        _list(comparison, [(spec, about(spec)) for spec in plan.specs]),
        "<h2>What happened</h2>",
        paragraphs([PAID if plan.is_log else LOST]),
        f"<figure>{curves}</figure>",
        f"<h2>{escape(reasons_title(comparison))}</h2>",
        _list(comparison, [pair for pair in reasons(comparison) if pair[1]]),
        _picture(comparison),
        "<h2>The numbers</h2>",
        note(spread),
        html_table(*table(comparison), ranked=True),
        ending(plan, command(comparison), "World", plan.world.parameters(), traces),
    ]
    kicker = f"{len(plan.specs)} ways to choose, compared on {plan.name}"
    return whole_page(kicker=kicker, title=headline(comparison), body=body)


def ending(plan: Plan, command: str, what: str, facts: JsonObject, beside: str) -> str:
    """Return how to do it again: the command, the seeds, `what` was played with its `facts`, and what is kept."""
    seeds = ", ".join(map(str, plan.seeds))
    return (
        "<h2>Do it again</h2>\n<p>The same command gives the same numbers.</p>\n"
        f"<pre>{escape(command)}</pre>\n<footer>\n"
        f"<p>Seeds {seeds}. {what}: <code>{escape(json.dumps(facts))}</code></p>\n"
        f"<p>{escape(beside)} Written by coterie {escape(coterie.__version__)}.</p>\n</footer>"
    )


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
    return f"<ul>{''.join(lines)}</ul>"


def _picture(comparison: Comparison) -> str:
    if comparison.picture is None or comparison.pictured is None:
        return ""
    panels = "\n".join(
        f"<figure><figcaption>{escape(caption)}</figcaption>{svg}</figure>"
        for caption, svg in neighbourhood_figures(comparison.picture, comparison.pictured.title)
    )
    words = "\n".join(map(note, picture_words(comparison)))
    return (
        f"<h2>One user, other neighbours for other items</h2>\n<p>{WHY}</p>\n"
        f'<div class="pair">{panels}</div>\n{words}'
    )
