"""Named parts of rewards, and guardrails: bounds on their averages.

A reward may have named parts, such as `clicked` or `complained`. Each is summed by itself. A guardrail says what the
average of a part may be at most, or at least. It is broken when the interval of the average lies entirely beyond the
bound. The interval holds for all looks together, so that nothing is stopped by chance: see `lift.from_bound`. Then
the loop shows the baseline, or a trial stops one of its arms, until the rules change.

All of this changes when a reward is applied, so it is a function of the log.
"""

import math
from collections.abc import Mapping
from datetime import UTC, datetime

from msgspec import Struct

from coterie.data.logs.rules import Config, Guardrail
from coterie.errors import ParameterError
from coterie.service.core.events import Event
from coterie.service.core.remembered import User
from coterie.service.problems import Problem
from coterie.service.trial.assignment import policies_of, shares
from coterie.service.trial.intervals import Interval
from coterie.service.trial.lift import Sums, average, from_bound

MOST_PARTS = 64  # names of parts in a loop
FEWEST = 100  # users; with fewer, no guardrail is broken
LOOP = ""  # stands for all arms of a guardrail on the loop
# What each arm's users are shown once it is stopped.
INSTEAD = {
    LOOP: "the baseline is shown",
    "champion": "the baseline is shown to everybody",
    "challenger": "its users are shown what the champion decides",
}


class Tally(Struct, array_like=True):
    """How many values there were, and their sum."""

    count: int = 0
    total: float = 0.0

    def add(self, value: float) -> None:
        """Add a value."""
        self.count += 1
        self.total += value


class Part(Struct):
    """All values of a part."""

    all: Tally
    least: float
    most: float
    whole: bool = True  # whether all of them are whole numbers
    arms: dict[str, Tally] = {}  # of the current trial

    def add(self, value: float, arm: str) -> None:
        """Add a value, also to that of an arm unless it is empty."""
        self.all.add(value)
        self.least, self.most = min(self.least, value), max(self.most, value)
        self.whole = self.whole and value == math.floor(value)
        if arm:
            self.arms.setdefault(arm, Tally()).add(value)

    def reach(self, bound: float) -> float:
        """Return how far from a bound a value may be; whole numbers may be 0 and 1, even if they were not yet."""
        least, most = (min(self.least, 0.0), max(self.most, 1.0)) if self.whole else (self.least, self.most)
        return max(most - bound, bound - least)


class Broken(Struct, frozen=True, rename="camel"):
    """When a guardrail was broken, and what was measured then."""

    at: int  # milliseconds
    users: int
    mean: float
    interval: Interval


class Guard(Struct):
    """What one guardrail measured: of each arm, or of the whole loop."""

    rail: Guardrail
    start: int  # the position of the record since which decisions count
    sums: dict[str, Sums] = {}  # of the values minus the bound
    broken: dict[str, Broken] = {}

    def mean(self, arm: str) -> float:
        """Return the average of an arm's values."""
        return (average(self.sums[arm]) or 0.0) + self.rail.bound


class Guards(Struct):
    """The parts of a loop's rewards, and its guardrails in the order of the configuration."""

    parts: dict[str, Part] = {}
    guards: list[Guard] = []

    def stopped(self) -> set[str]:
        """Return the arms that broke a guardrail."""
        return {arm for guard in self.guards for arm in guard.broken}

    def starts(self) -> list[int]:
        """Return since which record each guardrail counts."""
        return [guard.start for guard in self.guards]

    def shows_baseline(self) -> bool:
        """Return whether the baseline is shown to everybody."""
        return not self.stopped().isdisjoint((LOOP, "champion"))

    def begin(self, old: Config, new: Config, is_new_trial: bool, position: int) -> None:
        """Continue under new rules. What depends on other guardrails or policies starts again."""
        anew = _watched(old) != _watched(new)
        self.guards = [
            Guard(rail, position) if anew or (is_new_trial and rail.scope == "trial") else self.guards[k]
            for k, rail in enumerate(new.guardrails)
        ]
        if is_new_trial:
            for part in self.parts.values():
                part.arms = {}

    def add(
        self,
        parts: Mapping[str, float],
        event: Event,
        user: User | None,
        trial: int | None,
        at: int,
    ) -> list[str]:
        """Add the parts of a reward, and return which guardrails they broke; `trial` is where the trial began."""
        in_trial = trial is not None and event.position > trial and not self.stopped()
        for name, value in parts.items():
            if name not in self.parts:
                if len(self.parts) == MOST_PARTS:  # other services may have added some meanwhile
                    continue
                self.parts[name] = Part(Tally(), value, value)
            self.parts[name].add(value, event.arm if in_trial else "")
        found = []
        for k, guard in enumerate(self.guards):
            rail = guard.rail
            arm = LOOP if rail.scope == "loop" else event.arm
            is_watched = event.arm != "holdback" and (rail.scope == "loop" or event.arm)
            if (
                not is_watched
                or not {rail.part} & parts.keys() & self.parts.keys()
                or event.position <= guard.start
                or arm in guard.broken
            ):
                continue
            value = parts[rail.part] - rail.bound
            n, s = (0, 0.0) if user is None or event.alone else user.count_for(k, guard.start, value)
            sums = guard.sums.setdefault(arm, Sums())
            sums.add(value, n, s)
            interval = measured(rail, sums, self.parts[rail.part])
            if interval is not None and is_beyond(rail, interval):
                guard.broken[arm] = Broken(at, sums.users, guard.mean(arm), interval)
                found.append(broken_text(rail, arm, guard.broken[arm]))
        return found

    def broken_texts(self) -> list[str]:
        """Return which guardrails are broken, in words."""
        return [broken_text(one.rail, arm, stop) for one in self.guards for arm, stop in one.broken.items()]


def measured(rail: Guardrail, sums: Sums, part: Part) -> Interval | None:
    """Return the interval of a part's average that holds for all looks together; None if there are too few users."""
    if sums.users < FEWEST:
        return None
    low, high = from_bound(sums, part.reach(rail.bound))
    return Interval(low + rail.bound, high + rail.bound)


def is_beyond(rail: Guardrail, interval: Interval) -> bool:
    """Return whether an interval lies entirely beyond the bound."""
    return interval.low > rail.bound if rail.least is None else interval.high < rail.bound


def broken_text(rail: Guardrail, arm: str, broken: Broken) -> str:
    """Return in words which bound is broken, since when, what was measured, and what happens."""
    of = f"of the {arm} " if arm else ""
    side = "at most" if rail.least is None else "at least"
    since = datetime.fromtimestamp(broken.at / 1000, UTC).strftime("%Y-%m-%d %H:%M")
    low, high = broken.interval.low, broken.interval.high
    return (
        f"the guardrail on {rail.part!r} is broken: its average {of}was {broken.mean:.4g} ({low:.4g} to {high:.4g}) "
        f"over {broken.users:,} users, {side} {rail.bound:g} is allowed; since {since} UTC {INSTEAD[arm]}"
    )


def check_guardrails(config: Config) -> None:
    """Raise if a weight or a bound is not a finite number, or a guardrail has not one bound."""
    for name, weight in config.payoff.items():
        if not math.isfinite(weight):
            raise ParameterError(f"the weight of the part {name!r} is {weight}, expected a finite number")
    for rail in config.guardrails:
        if (rail.most is None) == (rail.least is None):
            raise ParameterError(
                f"the guardrail on {rail.part!r} has {'no bound' if rail.most is None else 'two bounds'}, expected "
                "`most` or `least`; use two guardrails for two bounds"
            )
        if not math.isfinite(rail.bound):
            raise ParameterError(
                f"the bound of the guardrail on {rail.part!r} is {rail.bound}, expected a finite number"
            )
        if rail.scope == "trial" and not any(shares(config)):
            raise ParameterError(
                f"the guardrail on {rail.part!r} is for a trial, but there is none; set `holdback` or `challenger`, "
                'or use the scope "loop"'
            )


def check_known(config: Config, known: Mapping[str, Part]) -> None:
    """Raise if a guardrail is on a part that no reward ever had, and that `payoff` does not name."""
    weights = config.payoff
    for rail in config.guardrails:
        if rail.part not in known and rail.part not in weights:
            there = ", ".join(map(repr, sorted({*known, *weights}))) or "none"
            raise ParameterError(
                f"no reward had the part {rail.part!r} of a guardrail, expected one of the known parts ({there}); if "
                "it is to come, name it in `payoff`, with the weight 0 if it is not to count"
            )


def value_of(
    value: float | None, parts: Mapping[str, float], config: Config, known: Mapping[str, Part]
) -> float:
    """Return what a reward is worth: its value, or else the weighted sum of its parts; raises if it has neither."""
    if len({*known, *parts}) > MOST_PARTS:
        new = ", ".join(map(repr, sorted(parts.keys() - known)))
        message = (
            f"{new} would be more than {MOST_PARTS} names of parts in this loop; use the names that it has"
        )
        raise Problem(422, "too_many_parts", message)
    if value is not None:
        return value
    weights = config.payoff
    if not weights.keys() & parts:
        have = f"the parts {', '.join(map(repr, parts))}, which" if parts else "no parts, and"
        message = (
            f"the reward has no value, and {have} `payoff` in the configuration gives no weight "
            f"(it has {', '.join(map(repr, weights)) or 'none'}); send `value`, or set the weights"
        )
        raise Problem(422, "no_value", message)
    return min(1.0, max(-1.0, math.fsum(weights[name] * parts[name] for name in weights if name in parts)))


def _watched(config: Config) -> list[object]:
    """Return what a guardrail's measurements depend on."""
    return [config.guardrails, config.mode, *policies_of(config)]
