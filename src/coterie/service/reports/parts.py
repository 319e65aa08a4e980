"""What the named parts of rewards are on average, and how far their guardrails are from being broken."""

from typing import Literal

from msgspec import Struct

from coterie.data.logs.rules import Config
from coterie.service.core.guardrails import Broken, Guards, Tally, measured
from coterie.service.trial.intervals import Interval


class Average(Struct, frozen=True, rename="camel"):
    """The average of some values."""

    count: int
    mean: float


class PartReport(Struct, frozen=True, rename="camel"):
    """One part of the rewards."""

    name: str
    weight: float | None  # in the payoff; None if it has none
    count: int
    mean: float
    arms: dict[str, Average]  # of the current trial


class GuardrailReport(Struct, frozen=True, rename="camel"):
    """What a guardrail measured: of one arm in a trial, or of the loop."""

    part: str
    most: float | None
    least: float | None
    scope: Literal["loop", "trial"]
    arm: str  # "" for the loop
    users: int  # with a value of the part; each request without a user counts as one
    mean: float | None
    interval: Interval | None  # holds for all looks together; None while there are too few users
    broken: Broken | None


def part_reports(guards: Guards, config: Config) -> list[PartReport]:
    """Return the report of each part, by name."""
    weights = config.payoff
    return [
        PartReport(
            name,
            weights.get(name),
            part.all.count,
            _mean(part.all),
            {arm: Average(tally.count, _mean(tally)) for arm, tally in part.arms.items()},
        )
        for name, part in sorted(guards.parts.items())
    ]


def guardrail_reports(guards: Guards) -> list[GuardrailReport]:
    """Return the report of each guardrail, in the order of the configuration."""
    found = []
    for guard in guards.guards:
        rail = guard.rail
        report = (rail.part, rail.most, rail.least, rail.scope)
        if not guard.sums:
            found.append(GuardrailReport(*report, "", 0, None, None, None))
        for arm, sums in guard.sums.items():
            interval = measured(rail, sums, guards.parts[rail.part])
            found.append(
                GuardrailReport(*report, arm, sums.users, guard.mean(arm), interval, guard.broken.get(arm))
            )
    return found


def _mean(tally: Tally) -> float:
    return tally.total / tally.count
