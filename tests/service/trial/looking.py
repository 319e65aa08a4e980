"""Simulated trials that are looked at often. `python -m tests.service.trial.looking` prints results/looks.json."""

import json
from typing import Any

import numpy as np

from coterie.data.logs.rules import Guardrail
from coterie.service.core.guardrails import Part, Tally, measured
from coterie.service.trial.lift import Sums, difference

KINDS = ("rare", "rare, once per user", "heavy-tailed", "heavy-tailed, once per user")
SMALLEST = (0.05, 0.2)  # the smallest lifts that matter, where there is no difference
N_LOOKS = 1000
PAYOFF = 0.2
LIFT = 0.05
BOUND, RATES = 0.02, (0.025, 0.03, 0.04, 0.06, 0.1)  # of a guardrail, and what the average really is
POWER = 2.80  # standard errors of a difference that a fixed look finds with a chance of 80 %


def looks(rng: Any, users: int, rates: tuple[float, float], n_looks: int) -> list[tuple[int, Sums, Sums]]:
    """Simulate a trial: users with 1 to 200 decisions within a third of its length; return the sums at each look."""
    visits = np.exp(rng.random(users) * np.log(200)).astype(int)
    arm = rng.random(users) < 0.5
    mean = np.where(arm, *rates)
    rate = rng.beta(20 * mean, 20 * (1 - mean))
    who = _order(rng, visits)
    value = (rng.random(len(who)) < rate[who]).astype(float)
    steps, ends = _steps(who, visits, value), _ends(len(who), n_looks)
    ours, theirs = (np.cumsum(steps * side, axis=1)[:, ends] for side in (arm[who], ~arm[who]))
    return [
        (int(end) + 1, Sums(int(a[0]), int(a[1]), *a[2:]), Sums(int(b[0]), int(b[1]), *b[2:]))
        for end, a, b in zip(ends, ours.T, theirs.T, strict=True)
    ]


def _order(rng: Any, visits: Any) -> Any:
    """Return who comes when: each user within a third of the whole time."""
    who = np.repeat(np.arange(len(visits)), visits)
    return who[np.argsort(rng.random(len(visits))[who] + rng.random(len(who)) / 3)]


def _ends(visits: int, n_looks: int) -> Any:
    return np.linspace(0, visits, n_looks + 1).astype(int)[1:] - 1


def _steps(who: Any, visits: Any, value: Any) -> Any:
    """Return what each value adds to the sums."""
    by_user = np.argsort(who, kind="stable")
    first = np.concatenate(([0], np.cumsum(visits)))[:-1]
    n, s = np.empty(len(who)), np.empty(len(who))
    n[by_user] = np.arange(len(who)) - np.repeat(first, visits)
    before = np.concatenate(([0.0], np.cumsum(value[by_user])))
    s[by_user] = before[:-1] - np.repeat(before[first], visits)
    return np.stack(
        [n == 0, np.ones(len(n)), value, 2 * n + 1, (n + 1) * (s + value) - n * s, (s + value) ** 2 - s * s]
    )


def first_named(trial: list[tuple[int, Sums, Sums]], smallest: float, once: bool = False) -> int | None:
    """Return after how many decisions a winner was named, if one was."""
    for decisions, ours, theirs in trial:
        found = difference(ours, theirs, smallest)
        if found is not None:
            range_ = found.one_look if once else found.interval
            if range_.low > 0 or range_.high < 0:
                return decisions
    return None


def without_difference(trials: int) -> dict[str, Any]:
    """Return how often a winner was named that does not exist, by either interval."""
    rng = np.random.default_rng(6)
    always, once = dict.fromkeys(map(str, SMALLEST), 0), 0
    for _ in range(trials):
        trial = looks(rng, 2000, (PAYOFF, PAYOFF), N_LOOKS)
        once += first_named(trial, SMALLEST[0], once=True) is not None
        for smallest in SMALLEST:
            always[str(smallest)] += first_named(trial, smallest) is not None
    return {
        "trials": trials,
        "looks": N_LOOKS,
        "always": {name: count / trials for name, count in always.items()},
        "once": once / trials,
    }


def with_difference(trials: int) -> dict[str, Any]:
    """Return after how many decisions a lift is named, and when a look that is fixed before would be."""
    rng = np.random.default_rng(7)
    named, fixed = [], []
    for _ in range(trials):
        trial = looks(rng, 30_000, (PAYOFF * (1 + LIFT), PAYOFF), N_LOOKS)
        named.append(first_named(trial, LIFT) or np.inf)
        fixed.append(next(when for when, *sums in trial if _precise(*sums)))
    return {
        "trials": trials,
        "named": float(np.median(named)),
        "fixed": float(np.median(fixed)),
        "ratio": float(np.median(named) / np.median(fixed)),
    }


def at_bound(loops: int) -> dict[str, Any]:
    """Return how often a guardrail is broken though the true average is its bound, by the kind of values."""
    rng = np.random.default_rng(8)
    return {kind: sum(_breaks(rng, kind) for _ in range(loops)) / loops for kind in KINDS}


def _breaks(rng: Any, kind: str) -> bool:
    """Return whether the interval is ever entirely above or below the true average."""
    users = 2000
    visits = np.exp(rng.random(users) * np.log(200)).astype(int)
    if "once" in kind:
        visits = np.ones(users, int)
    who = _order(rng, visits)
    if "rare" in kind:
        bound, rate = 0.01, rng.beta(0.2, 19.8, users)
        value = (rng.random(len(who)) < rate[who]).astype(float)
    else:
        bound, value = 1 / 1.5, rng.pareto(2.5, len(who))
    return _broken_after(who, visits, value, bound, "rare" in kind) is not None


def _broken_after(who: Any, visits: Any, value: Any, bound: float, whole: bool) -> int | None:
    """Return after how many users the interval is first entirely above or below the bound."""
    ends = _ends(len(who), N_LOOKS)
    sums = np.cumsum(_steps(who, visits, value - bound), axis=1)[:, ends].T
    least, most = np.minimum.accumulate(value)[ends], np.maximum.accumulate(value)[ends]
    for row, low, high in zip(sums, least.tolist(), most.tolist(), strict=True):
        part = Part(Tally(), low, high, whole=whole)
        found = measured(Guardrail("part", most=bound), Sums(int(row[0]), int(row[1]), *row[2:]), part)
        if found is not None and (found.low > bound or found.high < bound):
            return int(row[0])
    return None


def beyond_bound(loops: int) -> list[dict[str, Any]]:
    """Return after how many users, with one reward each, a guardrail of 2 % is broken that is really exceeded.

    `fixed` is how many a single look needs that is planned before, with a chance of 80 % to find it.
    """
    rng = np.random.default_rng(9)
    rows = []
    for rate in RATES:
        fixed = (POWER / (rate - BOUND)) ** 2 * rate * (1 - rate)
        users = int(10 * fixed)
        found = []
        for _ in range(loops):
            value = (rng.random(users) < rate).astype(float)
            found.append(
                _broken_after(np.arange(users), np.ones(users, int), value, BOUND, whole=True) or users
            )
        half, most = np.quantile(found, [0.5, 0.9])
        rows.append({"rate": rate, "half": float(half), "most": float(most), "fixed": fixed})
    return rows


def _precise(ours: Sums, theirs: Sums) -> bool:
    """Return whether one look would find the lift with a chance of 80 %."""
    found = difference(ours, theirs, LIFT)
    if found is None:
        return False
    return (found.one_look.high - found.one_look.low) / 2 <= LIFT * PAYOFF * 1.96 / POWER


if __name__ == "__main__":
    found: dict[str, Any] = {
        "without": without_difference(1000),
        "with": with_difference(60),
        "at_bound": at_bound(1000),
    }
    found["beyond_bound"] = beyond_bound(300)
    print(json.dumps(found, indent=1))
