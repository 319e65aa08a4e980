"""The report of a reproduction: one HTML file that works offline and describes the data's limits."""

import shlex
from collections.abc import Sequence
from html import escape
from pathlib import Path

from coterie.experiments.report.comparison import ending
from coterie.experiments.report.words import headline, reason
from coterie.experiments.study.compare import PolicyResult
from coterie.experiments.study.metrics import shown
from coterie.experiments.study.paper_figures import in_page
from coterie.experiments.study.protocol import Protocol
from coterie.experiments.study.reproduce import Reproduced, statistics
from coterie.experiments.study.table import LOG_HEAD, paid
from coterie.experiments.study.tuning import is_by_luck, read_score
from coterie.report.page import count, note, table, whole_page, write_page

FIGURES = {
    "figure-1": (
        "Figure 1: click-through rate against kept records",
        "A record counts only where a policy picked what the log had served. Higher is better.",
    ),
    "figure-2": (
        "Figure 2: what was lost, over what RAN lost",
        "The cumulative regret of each policy, over that of choosing blindly. Lower is better; 1 is no better "
        "than blind.",
    ),
    "figure-3": (
        "Figure 3: how far apart users are",
        "The mean distance between the served user's least-squares model and all other users' models, averaged "
        "over neighbouring rounds; shaded is the spread between the users served.",
    ),
}
BESIDE = (
    "Beside this page: figures as SVG, PDF and PNG; all numbers as JSON and Parquet; traces, round by round."
)


def write_evidence(evidence: Reproduced, command: Sequence[str]) -> Path:
    """Write report.html beside the numbers, and return its path. `command` is the command that repeats it."""
    return write_page(evidence.protocol.out / "report.html", page(evidence, command))


def page(evidence: Reproduced, command: Sequence[str]) -> str:
    """Return the report as HTML."""
    plan, protocol = evidence.comparison.plan, evidence.protocol
    body = [
        f'<p class="lead">{escape(lead(evidence))}</p>',
        *(f'<p class="warning">{escape(text)}</p>' for text in warnings(evidence)),
        "<h2>The data</h2>",
        table(*statistics_table(evidence)),
        note(
            "In the paper's Table 1, d is the number of items where these have no features, and T counts retained "
            f"records for logs. Rounds here are those reported, after the first {protocol.tuned_share:.0%} were used "
            "for tuning."
        ),
        *(_figure(name, in_page(sheet)) for name, sheet in evidence.sheets.items()),
        "<h2>The numbers</h2>",
        note(
            f"Mean ± spread (standard deviation) over {count(plan.n_runs, 'run')} of the reported part, best first. "
            "“Asked” is the mean number of users whose experience a decision rested on, “shared” how often a payoff "
            "taught more than one user, and “with” how many it then taught."
        ),
        table(*final_table(evidence), ranked=True),
        "<h2>What tuning chose</h2>",
        note(_tuning_words(evidence)),
        table(*tuning_table(evidence)),
        ending(plan, shlex.join(command), "Data", protocol.data.parameters(), BESIDE),
    ]
    title = f"{evidence.title}: {headline(evidence.comparison)}"
    return whole_page(kicker="The paper's section 5, done again", title=title, body=body)


def lead(evidence: Reproduced) -> str:
    """Return the result in a few sentences."""
    first, *others = evidence.comparison.results
    is_log = evidence.protocol.data.is_log
    what = "a click-through rate of" if is_log else "a regret over RAN's of"
    text = f"{first.spec.title} came to {what} {_final(first, is_log)}"
    if not others:
        return f"{text}."
    return f"{text}, the next, {others[0].spec.title}, to {_final(others[0], is_log)}. {reason(evidence.comparison)}"


def warnings(evidence: Reproduced) -> list[str]:
    """Return what a reader must know before using the results."""
    protocol = evidence.protocol
    notes = list(protocol.data.notes)
    if protocol.name == "delicious" and protocol.data.provenance == "real, partial":
        notes.append(
            "The Delicious files used are a partial reconstruction: 97,351 of the 104,799 bookmarks, tags without "
            "their weights, and a link from tags to URLs that was inferred. Results are close to, but not the "
            "same as, results on the published files."
        )
    notes += tuned_by_luck(protocol)
    left_out = protocol.left_out()
    if left_out:
        notes.append(f"This is the quick version. It did only {'; '.join(left_out)}.")
    return notes


def tuned_by_luck(protocol: Protocol) -> list[str]:
    """Return a warning for each policy that kept too few records to distinguish its settings."""
    notes = []
    for spec in protocol.specs if protocol.data.is_log else ():
        tried = [read_score(path, run) for _, tasks in protocol.tuning_tasks(spec) for run, path in tasks]
        if is_by_luck(tried):
            kept = sorted(one.kept for one in tried)[len(tried) // 2]
            notes.append(
                f"{spec.title} kept about {count(kept, 'record')} in tuning, too few to tell its {len(tried)} "
                "settings apart: the one taken may be no better than the others. Tune on a longer log, or fix the "
                "settings."
            )
    return notes


def statistics_table(evidence: Reproduced) -> tuple[list[str], list[list[str]]]:
    """Return the dataset's line of Table 1 and, below it, the paper's."""
    found = statistics(evidence)
    head = ["", "users n", "d", "candidates c", "T"]
    own = [found["dataset"], *(f"{found[key]:,}" for key in ("users", "features", "candidates", "retained"))]
    paper = found["paper"]
    if paper is None:
        return head, [own]
    return head, [own, ["in the paper", *(f"{value:,}" for value in paper.values())]]


def final_table(evidence: Reproduced) -> tuple[list[str], list[list[str]]]:
    """Return one line per policy: final value with spread, neighbourhood size, share rate."""
    is_log = evidence.protocol.data.is_log
    head = LOG_HEAD if is_log else ["policy", "regret over RAN's", "regret"]
    lines = []
    for result in evidence.comparison.results:
        second = f"{result.over('kept').mean:,.0f}" if is_log else shown(*result.over("regret"), ",.0f")
        lines.append([result.spec.title, _final(result, is_log), second, *_sharing(result)])
    return [*head, "asked", "shared", "with"], lines


def _sharing(result: PolicyResult) -> list[str]:
    taught = result.over("shared_with").mean
    with_whom = f"{taught:,.1f}" if taught == taught else "–"
    return [f"{result.over('neighbours').mean:,.1f}", f"{result.over('share_rate').mean:.1%}", with_whom]


def _final(result: PolicyResult, is_log: bool) -> str:
    if is_log:
        return paid(result)
    return "–" if result.to_random is None else shown(*result.to_random, ".3f")


def tuning_table(evidence: Reproduced) -> tuple[list[str], list[list[str]]]:
    """Return one line per policy: how many settings were tried, and the one taken."""
    protocol = evidence.protocol
    lines = []
    for spec, best in zip(protocol.specs, evidence.comparison.plan.specs, strict=True):
        tried = len(spec.variants()) if best.stands_for else len(protocol.tuning_tasks(spec))
        chosen = best.text.removeprefix(spec.text).lstrip(":").replace(":", ", ") or "nothing to choose"
        if best.stands_for:
            chosen += " (in hindsight, on the reported rounds)"
        lines.append([spec.title, f"{tried:,}", chosen])
    return ["policy", "settings tried", "taken"], lines


def _tuning_words(evidence: Reproduced) -> str:
    protocol = evidence.protocol
    aim = "highest click-through rate" if protocol.data.is_log else "lowest regret"
    return (
        f"Each setting of the grid played the first {protocol.n_tuned:,} rounds; the one with the {aim} was taken "
        f"and began the other {protocol.n_reported:,} with nothing learned."
    )


def _figure(name: str, svg: str) -> str:
    title, words = FIGURES[name]
    return f"<h2>{escape(title)}</h2>\n<p>{escape(words)}</p>\n<figure>{svg}</figure>"
