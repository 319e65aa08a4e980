"""The report of a trial: what each arm earned, and which lifts are significant."""

from typing import Literal

from msgspec import Struct

from coterie.data.logs.records import ArmName
from coterie.data.logs.rules import Config
from coterie.service.trial.assignment import shares
from coterie.service.trial.intervals import Interval
from coterie.service.trial.lift import Difference, Trial, arm_interval, average, difference

PAIRS: tuple[tuple[ArmName, ArmName], ...] = (
    ("champion", "holdback"),
    ("challenger", "champion"),
    ("challenger", "holdback"),
)


class ArmReport(Struct, frozen=True, rename="camel"):
    """What an arm earned."""

    name: str
    policy: str  # "baseline" in the holdback
    share: float
    users: int  # with a payoff; each request without a user counts as one
    learned: int
    payoff: float | None
    interval: Interval | None


class Lift(Struct, frozen=True, rename="camel"):
    """How much more one arm earns than another."""

    arm: str
    against: str
    difference: Difference | None  # None while one of them has no payoffs
    # Holds however often one looks. alike: any difference is smaller than the smallest that matters.
    verdict: Literal["better", "worse", "alike", "unclear"]
    remaining: (
        float | None
    )  # seconds until the smallest difference that matters would be named; None is unknown


class TrialReport(Struct, frozen=True, rename="camel"):
    """A comparison of arms whose users were assigned at random."""

    since: int
    arms: list[ArmReport]
    lifts: list[Lift]


def report(trial: Trial | None, config: Config, now: int) -> TrialReport | None:
    """Return the report of the current trial, if there is one, at a time in milliseconds."""
    if trial is None:
        return None
    held, given = shares(config)
    share = {"champion": 1 - held - given, "holdback": held, "challenger": given}
    other = "" if config.challenger is None else config.challenger.policy
    policy = {"champion": config.policy, "holdback": "baseline", "challenger": other}
    least = -1.0 if any(sums.losses for sums in trial.arms.values()) else 0.0
    arms = [
        ArmReport(
            name,
            policy[name],
            share[name],
            sums.users,
            sums.learned,
            average(sums),
            arm_interval(sums, least),
        )
        for name, sums in trial.arms.items()
        if share[name] > 0
    ]
    lifts = [
        _lift(trial, config, now, one, other) for one, other in PAIRS if share[one] > 0 and share[other] > 0
    ]
    return TrialReport(trial.at, arms, lifts)


def _lift(trial: Trial, config: Config, now: int, arm: str, against: str) -> Lift:
    found = difference(trial.arms[arm], trial.arms[against], config.smallest_lift)
    if found is None:
        return Lift(arm, against, None, "unclear", None)
    low, high = found.interval.low, found.interval.high
    if low > 0 or high < 0:
        return Lift(arm, against, found, "better" if low > 0 else "worse", 0.0)
    if -found.matters <= low and high <= found.matters:
        return Lift(arm, against, found, "alike", 0.0)
    past = (now - trial.at) / 1000
    remaining = None if found.needed is None else past * max(0.0, found.needed - 1)
    return Lift(arm, against, found, "unclear", remaining)
