"""An evaluation in words, as a table and as JSON. Every claim follows from the numbers."""

import math
from dataclasses import replace

from scipy.special import ndtri

from coterie.arrays import JsonObject
from coterie.evaluation.estimates import METHODS, TITLES, Estimate
from coterie.evaluation.evaluate import Evaluation, Result
from coterie.evaluation.verdict import LEVEL, chance_of_best, is_ahead
from coterie.models.always_valid import always_for
from coterie.report.page import count

LOGGED = "logged"
MOST_NEEDED = 100  # times the records so far; beyond that, `outlook` names no number


def headline(evaluation: Evaluation) -> str:
    """Return which policy would have earned most, in a few words, or that there is no clear winner."""
    first, *others = evaluation.results
    if not others:
        return f"{first.name} on its own"
    if is_clear(evaluation):
        return (
            "What was shown earned most" if first.name == LOGGED else f"{first.name} would have earned most"
        )
    return f"No clear winner: {first.name} and {others[0].name} came out close"


def is_clear(evaluation: Evaluation) -> bool:
    """Return whether the first is significantly ahead of all others."""
    first, *others = [result.evidence for result in evaluation.results]
    return is_ahead(first, others)


def ahead_of_logged(evaluation: Evaluation) -> list[str]:
    """Return the policies that would have earned significantly more than the logged one."""
    shown = next((result.evidence for result in evaluation.results if result.name == LOGGED), None)
    if shown is None:
        return []
    others = [result for result in evaluation.results if result.name != LOGGED]
    return [
        result.name
        for result in others
        if result.evidence.is_enough and result.evidence.chance_over(shown) * len(others) <= LEVEL
    ]


def lead(evaluation: Evaluation) -> str:
    """Return the result in a few sentences."""
    first, *others = evaluation.results
    shape = number_format(evaluation)
    called = "It" if others and is_clear(evaluation) else _called(first)  # the headline has named it
    text = f"{called} {_earned(first, shape)} per decision {_within(first.best_estimate, shape)}"
    shown = next((result for result in others if result.name == LOGGED), None)
    second = shown or (others[0] if others else None)
    if second is None:
        return f"{text}."
    text = (
        f"{text}; {_called(second, False)} {_earned(second, shape)} {_within(second.best_estimate, shape)}."
    )
    few = min(evaluation.results, key=lambda result: result.evidence.effective)
    if not few.evidence.is_enough:
        return (
            f"{text} But for {few.name} the log is worth only {count(few.evidence.effective, 'record')}, "
            "too few to compare."
        )
    if is_clear(evaluation):
        return f"{text} Such a lead would be found in fewer than 1 in 100 logs where all earn the same."
    found = chance_of_best(first.evidence, [result.evidence for result in others])
    often = f"up to {100 * found:.0f} in 100 logs" if found < 0.995 else "nearly every log"
    text = (
        f"{text} But such a lead over all others would be found in {often} where all earn the same, so do not rely "
        "on the order."
    )
    sure = ahead_of_logged(evaluation)
    return f"{text} Clearly better than what was shown: {', '.join(sure)}." if sure else text


def outlook(evaluation: Evaluation) -> str:
    """Return whether one may stop to watch a growing log, or about how many more decisions its verdict needs."""
    if is_clear(evaluation):
        return "The verdict holds however often you look. You may stop."
    first, *others = [result.evidence for result in evaluation.results]
    if not others or not all(one.is_enough for one in (first, *others)):
        return "Too few records for a verdict so far."
    chance = max(replace(first, always=False).chance_over(other) for other in others)
    lead = -float(ndtri(chance)) if chance < 0.5 else 0.0
    needed = (always_for(first.n, LEVEL / 2) / lead) ** 2 * first.n if lead else math.inf
    if needed > MOST_NEEDED * first.n:
        return "The first two earn about the same: a verdict would need far more records."
    return f"If the lead stays as it is, a verdict needs about {count(needed - first.n, 'more decision')}."


def _called(result: Result, begins: bool = True) -> str:
    if result.name != LOGGED:
        return result.name
    return "What was shown" if begins else "what was shown"


def _earned(result: Result, shape: str) -> str:
    verb = "earned" if result.name == LOGGED else "would have earned"
    return f"{verb} {result.best_estimate.value:{shape}}"


def _within(value: Estimate, shape: str) -> str:
    return f"({value.low:{shape}} to {value.high:{shape}})"


def number_format(evaluation: Evaluation) -> str:
    """Return the format of rewards: three decimals, or as many as show two digits of the largest estimate."""
    largest = max(abs(result.best_estimate.value) for result in evaluation.results)
    return f".{max(3, 1 - math.floor(math.log10(largest))) if largest > 0 else 3}f"


def table(evaluation: Evaluation) -> tuple[list[str], list[list[str]]]:
    """Return the head and one line per policy, best first."""
    head = ["policy", *(TITLES[name] for name in reversed(METHODS)), "worth (records)", "largest weight"]
    shape = number_format(evaluation)
    body = [
        [
            result.name,
            *(f"{one.value:{shape}} {_within(one, shape)}" for one in _as_shown(result)),
            f"{result.evidence.effective:,.0f} of {result.evidence.n:,}",
            f"{result.evidence.weights.max():.3g}",
        ]
        for result in evaluation.results
    ]
    return head, body


def _as_shown(result: Result) -> list[Estimate]:
    return [result.estimates[name] for name in reversed(METHODS)]


def short_table(evaluation: Evaluation) -> tuple[list[str], list[list[str]]]:
    """Return the same for a narrow terminal, with the interval of the doubly robust estimate only."""
    head = ["policy", "earned", f"{evaluation.level:.0%} interval", "direct", "SNIPS", "IPS", "worth"]
    shape, body = number_format(evaluation), []
    for result in evaluation.results:
        value, low, high = result.best_estimate
        others = [f"{result.estimates[name].value:{shape}}" for name in ("dm", "snips", "ips")]
        worth = f"{result.evidence.effective:,.0f}"
        body.append([result.name, f"{value:{shape}}", f"{low:{shape}} to {high:{shape}}", *others, worth])
    return head, body


COLUMNS = (
    "Earned is per decision, by the doubly robust estimate; direct, SNIPS and IPS are other estimates of it. "
    "Worth is how many records collected by the policy itself would tell as much as this log."
)


def as_text(evaluation: Evaluation) -> str:
    """Return verdict, table and notes for a terminal."""
    head, body = table(evaluation)
    widths = [max(len(line[i]) for line in [head, *body]) for i in range(len(head))]
    lines = [f"{headline(evaluation)}. {lead(evaluation)}", ""]
    for line in [head, *body]:
        first, *rest = zip(line, widths, strict=True)
        lines.append("  ".join([str.ljust(*first), *(str.rjust(*cell) for cell in rest)]))
    return "\n".join([*lines, *(["", *evaluation.notes] if evaluation.notes else [])])


def as_json(evaluation: Evaluation) -> JsonObject:
    """Return the evaluation as JSON values; null where a number is undefined."""
    return {
        "log": evaluation.log.name,
        "records": len(evaluation.log.interactions),
        "level": evaluation.level,
        "verdict": headline(evaluation),
        "words": lead(evaluation),
        "clear_winner": is_clear(evaluation),
        "ahead_of_logged": ahead_of_logged(evaluation),
        "policies": [_policy(result) for result in evaluation.results],
        "notes": list(evaluation.notes),
    }


def _policy(result: Result) -> JsonObject:
    evidence = result.evidence
    return {
        "policy": result.name,
        **{name: result.estimates[name]._asdict() for name in METHODS},
        "effective_sample_size": evidence.effective,
        "largest_weight": float(evidence.weights.max()),
        "largest_possible_weight": evidence.largest if math.isfinite(evidence.largest) else None,
        "clip": evidence.clip,
        "clipped": evidence.clipped,
        "not_observed": evidence.lost,
        "windows": [
            {"first": window.first, "last": window.last - 1, "at": window.at, "dr": window.value._asdict()}
            for window in result.windows
        ],
    }
