"""Simulated trials that are looked at often. `python -m tests.service.trial.looking` prints results/looks.json."""

import json
from typing import Any

import numpy as np

from coterie.service.trial.lift import Sums, difference

SMALLEST = (0.05, 0.2)  # the smallest lifts that matter, where there is no difference
N_LOOKS = 1000
PAYOFF = 0.2
LIFT = 0.05
POWER = 2.80  # standard errors of a difference that a fixed look finds with a chance of 80 %


def looks(rng: Any, users: int, rates: tuple[float, float], n_looks: int) -> list[tuple[int, Sums, Sums]]:
    """Simulate a trial: users with 1 to 200 decisions within a third of its length; return the sums at each look."""
    visits = np.exp(rng.random(users) * np.log(200)).astype(int)
    arm = rng.random(users) < 0.5
    mean = np.where(arm, *rates)
    rate = rng.beta(20 * mean, 20 * (1 - mean))
    who = np.repeat(np.arange(users), visits)
    who = who[np.argsort(rng.random(users)[who] + rng.random(len(who)) / 3)]
    value = (rng.random(len(who)) < rate[who]).astype(float)
    by_user = np.argsort(who, kind="stable")
    first = np.concatenate(([0], np.cumsum(visits)))[:-1]
    n, s = np.empty(len(who)), np.empty(len(who))
    n[by_user] = np.arange(len(who)) - np.repeat(first, visits)
    before = np.concatenate(([0.0], np.cumsum(value[by_user])))
    s[by_user] = before[:-1] - np.repeat(before[first], visits)
    steps = np.stack(
        [n == 0, np.ones(len(n)), value, 2 * n + 1, (n + 1) * (s + value) - n * s, (s + value) ** 2 - s * s]
    )
    ends = np.linspace(0, len(who), n_looks + 1).astype(int)[1:] - 1
    ours, theirs = (np.cumsum(steps * side, axis=1)[:, ends] for side in (arm[who], ~arm[who]))
    return [
        (int(end) + 1, Sums(int(a[0]), int(a[1]), *a[2:]), Sums(int(b[0]), int(b[1]), *b[2:]))
        for end, a, b in zip(ends, ours.T, theirs.T, strict=True)
    ]


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


def _precise(ours: Sums, theirs: Sums) -> bool:
    """Return whether one look would find the lift with a chance of 80 %."""
    found = difference(ours, theirs, LIFT)
    if found is None:
        return False
    return (found.one_look.high - found.one_look.low) / 2 <= LIFT * PAYOFF * 1.96 / POWER


if __name__ == "__main__":
    print(json.dumps({"without": without_difference(1000), "with": with_difference(60)}, indent=1))
