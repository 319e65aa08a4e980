"""The final table of a comparison, for readers (terminal, report) and for programs (JSON)."""

import math

from coterie.arrays import JsonObject
from coterie.experiments.study.compare import Comparison, PolicyResult
from coterie.experiments.study.metrics import Spread, Summary, shown

WORLD_HEAD = ["policy", "lost", "of what RAN lost", "earned of the possible"]
LOG_HEAD = ["policy", "paid per record", "records used"]


def table(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Return the head and one line per policy, best first.

    Numbers of a world are mean ± spread over the runs, those of a log ± the sampling error of the kept records.
    """
    if comparison.plan.is_log:
        return LOG_HEAD, [_log_line(result) for result in comparison.results]
    return WORLD_HEAD, [_world_line(result) for result in comparison.results]


def _world_line(result: PolicyResult) -> list[str]:
    to_random = "" if result.to_random is None else shown(*result.to_random, ".0%")
    return [
        result.spec.title,
        shown(*result.over("regret"), ",.0f"),
        to_random,
        shown(*result.over("share_of_best"), ".0%"),
    ]


def _log_line(result: PolicyResult) -> list[str]:
    return [result.spec.title, paid(result), f"{result.over('kept').mean:,.0f}"]


def paid(result: PolicyResult) -> str:
    """Return the click-through rate on a log with its sampling error."""
    assert result.rate is not None
    return shown(result.rate.value, result.rate.error, ".4f")


def as_json(comparison: Comparison) -> JsonObject:
    """Return all results as JSON values; null where a number is undefined."""
    plan = comparison.plan
    return {
        "world": plan.name,
        "world_parameters": plan.world.parameters(),
        "n_rounds": plan.n_rounds,
        "seeds": plan.seeds,
        "measure": "ctr" if plan.is_log else "regret",
        "clear_winner": len(comparison.results) > 1 and comparison.is_clear,
        "policies": [_policy(comparison, result) for result in comparison.results],
        "hindsight": {
            text: {one: _spread(value) for one, value in found.items()}
            for text, found in comparison.hindsight.items()
        },
        "report": str(plan.out / "report.html"),
    }


def _policy(comparison: Comparison, result: PolicyResult) -> JsonObject:
    numbers = {name: _spread(result.over(name)) for name in Summary._fields}
    to_random = None if result.to_random is None else _spread(result.to_random)
    if result.rate is not None:
        numbers["ctr"] |= {"mean": _plain(result.rate.value), "error": _plain(result.rate.error)}
    return {
        "policy": result.spec.text,
        "title": result.spec.title,
        "items": comparison.plan.tasks(result.spec)[0][0].items,
        **numbers,
        "regret_to_random": to_random,
        "runs": [{name: _plain(value) for name, value in run._asdict().items()} for run in result.runs],
        "traces": [str(path) for _, path in comparison.plan.tasks(result.spec)],
    }


def _spread(value: Spread) -> dict[str, float | None]:
    return {"mean": _plain(value.mean), "spread": _plain(value.spread)}


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
