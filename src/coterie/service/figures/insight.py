"""What the page shows: sums over time, the latest decisions, and how users and items lie to each other.

All of it is read from the statistics, from the end of the log and from the model; nothing is kept for the
page alone except the latest decisions, which follow the log.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from coterie.models.encoded import Encoded
from coterie.policies import Policy
from coterie.service.core.bandit import Bandit
from coterie.service.core.reasons import rows_of
from coterie.service.core.records import Rank, Record, Reward
from coterie.service.figures.intervals import Interval, Sums, interval
from coterie.service.figures.statistics import MINUTE, Minute
from coterie.service.log.store import Store

LATEST = 2_000  # decisions remembered
SAMPLE = 120  # users looked at, the latest seen
POINTS = 120  # of a curve, at most
ENOUGH = 30  # decisions that an estimate must be worth to be shown
STRETCHES = 20  # of the latest decisions, at most
LEAST_STRETCH = 50  # decisions
SAME = 1e-12  # what the neighbourhood test allows for rounding


class Latest(Struct):
    """One of the latest decisions."""

    event: str
    at: int
    user: int
    item: str
    x: bytes | None
    hashed: bytes | None
    shown: str
    choices: int
    members: int | None  # the neighbourhood of what was chosen, when it was chosen
    reward: float | None = None
    arm: str = ""


class Tail:
    """The latest decisions, read from the end of the log as it grows."""

    def __init__(self) -> None:
        self.decisions: deque[Latest] = deque(maxlen=LATEST)
        self._by_event: dict[str, Latest] = {}
        self._next = 0

    def follow(self, store: Store) -> None:
        """Read what came since; never more than a few times what is remembered."""
        first, end = store.bounds()
        start = max(self._next, first, end - 4 * LATEST)
        for batch in store.read(start) if start < end else ():
            for position, record in enumerate(batch.records(), batch.first):
                if position >= start:
                    self._take(record)
                    self._next = position + 1

    def _take(self, record: Record) -> None:
        if isinstance(record, Rank):
            if len(self.decisions) == LATEST:
                self._by_event.pop(self.decisions[0].event, None)
            made = Latest(
                record.event,
                record.at,
                record.user,
                record.actions[record.choice],
                record.x,
                record.hashed,
                record.shown or "best",
                len(record.actions) - len(record.excluded),
                members_of(record),
                arm=record.arm,
            )
            self.decisions.append(made)
            self._by_event[record.event] = made
        elif isinstance(record, Reward) and record.outcome == "applied":
            found = self._by_event.get(record.event)
            if found is not None:
                found.reward = (found.reward or 0.0) + record.value

    def of(self, bandit: Bandit) -> list[Latest]:
        """Return the decisions for users who are still known, newest first."""
        kept = [made for made in self.decisions if made.user in bandit.ids]
        if len(kept) != len(self.decisions):  # somebody was forgotten: here too
            self.decisions = deque(kept, maxlen=LATEST)
            self._by_event = {made.event: made for made in kept}
        return kept[::-1]


def members_of(record: Rank) -> int | None:
    """Return how many users a choice rested on, if the log says so."""
    rows = rows_of(record)
    if rows is None or "neighbours" not in rows[0]:
        return None
    open_to = [k for k in range(len(record.actions)) if k not in record.excluded]
    return int(rows[open_to.index(record.choice)]["neighbours"])


class Stretch(Struct, frozen=True, rename="camel"):
    """Some of the latest decisions, in order, and what they earned: learning by the round, not by the clock."""

    start: int  # when the first of them was made
    decisions: int
    payoff: float
    payoff_interval: Interval | None


def stretches(latest: Sequence[Latest], bandit: Bandit) -> list[Stretch]:
    """Return what the latest decisions of the champion earned, newest last; those that still wait are left out."""
    settled = []
    for made in reversed(latest):
        event = bandit.events.get(made.event)
        if made.arm in ("", "champion") and event is not None and event.state in ("rewarded", "expired"):
            settled.append((made.at, event.value))
    size = max(LEAST_STRETCH, -(-len(settled) // STRETCHES))
    found = []
    for first in range(len(settled) % size, len(settled), size):
        part = [value for _, value in settled[first : first + size]]
        sums = _each_once(size, sum(part), sum(value * value for value in part))
        least = -1.0 if min(part) < 0 else 0.0
        found.append(Stretch(settled[first][0], size, sum(part) / size, interval(sums, least)))
    return found


class Point(Struct, frozen=True, rename="camel"):
    """A stretch of time: what was decided and earned, and what the others would have."""

    start: int
    decisions: int
    learned: int
    earned: float
    payoff: float | None
    baseline: float | None
    uniform: float | None
    baseline_worth: float  # how many decisions the estimate is worth
    uniform_worth: float
    share_rate: float | None
    payoff_interval: Interval | None
    baseline_interval: Interval | None
    uniform_interval: Interval | None
    baseline_blind: int  # payoffs of choices that left the baseline no chance; with any of them it is unknown
    uniform_blind: int
    agreement: float | None  # how often the best guess is the baseline's choice
    would_earn: float | None  # while the baseline is shown to all: what the best guess would have earned …
    would_earn_interval: Interval | None  # … and what is certain of it
    entropy: float | None  # of the choices, bits: how much is left to chance
    holdback: float | None  # what those earned who were held back, and those of the challenger
    holdback_interval: Interval | None
    holdback_learned: int
    challenger: float | None
    challenger_interval: Interval | None
    challenger_learned: int


SUMS = [name for name in Minute.__struct_fields__ if name != "start"]


def total(start: int, rows: Iterable[Minute]) -> Minute:
    """Return the sums of several minutes."""
    sums = Minute(start)
    for row in rows:
        for name in SUMS:
            setattr(sums, name, getattr(sums, name) + getattr(row, name))
    return sums


def point(sums: Minute, around: Minute | None = None) -> Point:
    """Return averages; those of the baseline and of chance by inverse propensity, self-normalised.

    `around` holds the sums they are estimated from, if not these. What cannot be estimated is None.
    """
    around = around or sums
    baseline = _estimate(around, "baseline")
    uniform = _estimate(around, "uniform")
    every = _each_once(sums.learned, sums.earned, sums.earned_squares)
    would = _would_earn(sums)
    beside = {
        name: _each_once(*(getattr(sums, f"{name}_{part}") for part in ("learned", "earned", "squares")))
        for name in ("holdback", "challenger")
    }
    return Point(
        start=sums.start,
        decisions=sums.decisions,
        learned=sums.learned,
        earned=sums.earned,
        payoff=_ratio(sums.earned, sums.learned),
        baseline=baseline.value,
        uniform=uniform.value,
        baseline_worth=baseline.worth,
        uniform_worth=uniform.worth,
        share_rate=_ratio(sums.updates - sums.all_learned, sums.updates),
        payoff_interval=interval(every, _least(sums)) if sums.summed == sums.learned else None,
        baseline_interval=baseline.interval,
        uniform_interval=uniform.interval,
        baseline_blind=around.baseline_blind,
        uniform_blind=around.uniform_blind,
        agreement=_ratio(sums.agreed, sums.judged),
        would_earn=would.value,
        would_earn_interval=would.interval,
        entropy=_ratio(sums.entropy, sums.varied),
        holdback=_ratio(sums.holdback_earned, sums.holdback_learned),
        holdback_interval=interval(beside["holdback"], -1.0 if sums.holdback_losses else 0.0),
        holdback_learned=sums.holdback_learned,
        challenger=_ratio(sums.challenger_earned, sums.challenger_learned),
        challenger_interval=interval(beside["challenger"], -1.0 if sums.challenger_losses else 0.0),
        challenger_learned=sums.challenger_learned,
    )


def _each_once(learned: int, earned: float, squares: float) -> Sums:
    """Return the sums of payoffs that count once."""
    return Sums(learned, learned, learned, earned, earned, squares)


class Estimate(NamedTuple):
    """What another choice would have earned, as far as it can be told."""

    value: float | None
    interval: Interval | None
    worth: float


def _estimate(sums: Minute, name: str) -> Estimate:
    """Return what the baseline or a uniform choice would have earned.

    Unknown where a choice left it no chance, where too few decisions speak of it, and where the interval is wider
    than half of what is possible.
    """
    weight, squares, earned, products, payoffs, blind = (
        getattr(sums, f"{name}_{part}")
        for part in ("weight", "squares", "earned", "products", "payoffs", "blind")
    )
    worth = 0.0 if blind else _worth(weight, squares)
    if blind or sums.summed != sums.learned or worth < ENOUGH:
        return Estimate(None, None, worth)
    least = _least(sums)
    found = interval(Sums(sums.learned, weight, squares, earned, products, payoffs), least)
    narrow = found is not None and found.high - found.low <= (1 - least) / 2
    return Estimate(earned / weight if narrow else None, found, worth)


def _would_earn(sums: Minute) -> Estimate:
    """Return what the best guess would have earned while the baseline was shown to all.

    Where the two were the same it is seen; of the rest nothing is known but its range, by which the interval is
    stretched. Unknown as other estimates are, but never because of a choice that was certain: here all were.
    """
    n, earned = sums.shadowed_agreed, sums.shadowed_earned
    if n == 0 or sums.shadowed < ENOUGH:
        return Estimate(None, None, n)
    least = _least(sums)
    found = interval(Sums(sums.shadowed, n, n, earned, earned, sums.shadowed_squares), least)
    narrow = found is not None and n >= ENOUGH and found.high - found.low <= (1 - least) / 2
    return Estimate(earned / n if narrow else None, found, n)


def _least(sums: Minute) -> float:
    """Return the least that a payoff can be: 0 as long as none was below."""
    return -1.0 if sums.losses else 0.0


def curve(minutes: Sequence[Minute], now: int, span: int) -> list[Point]:
    """Return the last `span` minutes in at most POINTS stretches; stretches without anything are left out.

    What the others would have earned is estimated from the few decisions by chance, so each point looks back
    as far as it takes to have enough of them.
    """
    width = MINUTE * max(1, -(-span // POINTS))
    begin = now - now % width - (-(-span * MINUTE // width) - 1) * width
    stretches: dict[int, list[Minute]] = {}
    for row in minutes:
        if row.start >= begin:
            stretches.setdefault(row.start - row.start % width, []).append(row)
    sums = [total(start, rows) for start, rows in sorted(stretches.items())]
    return [point(own, _looking_back(sums[: k + 1])) for k, own in enumerate(sums)]


def _looking_back(sums: Sequence[Minute]) -> Minute:
    around = sums[-1]
    for row in reversed(sums[:-1]):
        weights = (
            (around.baseline_weight, around.baseline_squares),
            (around.uniform_weight, around.uniform_squares),
        )
        if all(_worth(*pair) >= ENOUGH for pair in weights):
            break
        around = total(row.start, [around, row])
    return around


def _worth(weight: float, squares: float) -> float:
    """Return how many decisions of weight 1 weights are worth (Kish's effective size)."""
    return weight * weight / squares if squares > 0 else 0.0


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def quantile(bounds: Sequence[tuple[float, float]], share: float) -> float | None:
    """Return a quantile of (upper bound, how many up to it), interpolated within its bucket.

    >>> quantile([(1.0, 0), (2.0, 10), (float("inf"), 10)], 0.5)
    1.5
    """
    total = bounds[-1][1] if bounds else 0
    if not total:
        return None
    below, lower = 0.0, 0.0
    for upper, count in bounds:
        if count >= share * total:
            if upper == float("inf"):
                return lower
            # Rounding may lead past the bucket's own end.
            return min(upper, lower + (upper - lower) * (share * total - below) / (count - below))
        below, lower = count, upper
    return lower


class Place(Struct, frozen=True, rename="camel"):
    """Where a user stands on an item."""

    user: str
    estimate: float
    width: float
    known: bool  # whether anything was learned for the user here


def context_of(item: str, bandit: Bandit, latest: Sequence[Latest]) -> tuple[Policy, Any] | None:
    """Return the policy and the context to look at an item with: its id, or as it was last chosen."""
    if bandit.policies.model is not None:
        for made in latest:
            if made.item == item and made.hashed is not None:
                return bandit.policies.model, Encoded.from_bytes(made.hashed)
    if bandit.policies.items is not None and item in bandit.policies.known_items:
        return bandit.policies.items, item
    if bandit.policies.vectors is not None:
        for made in latest:
            if made.item == item and made.x is not None and len(made.x) == 8 * bandit.config.dimensions:
                return bandit.policies.vectors, np.frombuffer(made.x)
    return None


def look(policy: Policy, user: int, contexts: Sequence[Any]) -> tuple[Any, Any, Any]:
    """Return a user's estimates, widths and neighbourhood sizes, each (contexts,)."""
    if isinstance(contexts[0], Encoded):  # each in the context in which it was shown
        told = [policy.explain(user, one) for one in contexts]
        estimate, width, members = (
            np.concatenate([getattr(one, name) for one in told]) for name in ("estimate", "width", "members")
        )
        return estimate, width, members
    shown: Any = np.array(contexts) if isinstance(contexts[0], np.ndarray) else list(contexts)
    decision = policy.explain(user, shown)
    return decision.estimate, decision.width, decision.members


def alike(a: Place, b: Place) -> bool:
    """Return whether two users are neighbours: whether their bounds overlap."""
    return abs(a.estimate - b.estimate) <= a.width + b.width + SAME


def latest_users(bandit: Bandit, most: int) -> list[int]:
    """Return the users seen last."""
    found: list[int] = []
    for number in reversed(bandit.users):
        if number in bandit.ids:
            found.append(number)
            if len(found) == most:
                break
    return found


def places(
    policy: Policy, contexts: Sequence[Any], users: Sequence[int], bandit: Bandit
) -> list[list[Place]]:
    """Return where users stand on items, a list of users for each item."""
    see = viewer(policy, contexts, users)
    _, nobody = see(-1)
    found: list[list[Place]] = [[] for _ in contexts]
    for number in users:
        estimate, width = see(number)
        known = width < nobody - SAME
        for k, column in enumerate(found):
            column.append(Place(bandit.ids[number], float(estimate[k]), float(width[k]), bool(known[k])))
    return found


def viewer(policy: Policy, contexts: Sequence[Any], users: Sequence[int]) -> Callable[[int], tuple[Any, Any]]:
    """Return what gives a user's estimates and widths: the models alone, where they say what the policy does.

    Deciding also gathers everybody's neighbourhood: for 120 users that took 230 ms, and this takes 5.
    """
    models = getattr(policy, "models", None)
    if models is not None and users:
        shown = models.read(np.array(contexts) if isinstance(contexts[0], np.ndarray) else list(contexts))
        estimate, width, _ = look(policy, users[0], contexts[:1])
        own = models.view(users[0], shown)
        scale = width[0] / own.spread[0] if own.spread[0] > 0 else 0.0

        def see(number: int) -> tuple[Any, Any]:
            view = models.view(number, shown)
            return view.estimate, scale * view.spread

        if scale > 0 and abs(own.estimate[0] - estimate[0]) < 1e-9:
            return see
    return lambda number: look(policy, number, contexts)[:2]


def groups(standing: Sequence[Place]) -> list[list[Place]]:
    """Split users who are known on an item into groups, the best payoff first.

    A group is all who are neighbours of its surest member: a picture of how the item splits the users, not
    what decisions use, which is each user's own neighbourhood.
    """
    left = sorted((place for place in standing if place.known), key=lambda place: (place.width, place.user))
    found = []
    while left:
        centre = left[0]
        found.append([place for place in left if alike(centre, place)])
        left = [place for place in left if not alike(centre, place)]
    return sorted(found, key=lambda group: -group[0].estimate)
