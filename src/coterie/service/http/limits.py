"""Requests that are refused before any work: too large, or too many."""

import sys
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from coterie.models.encoded import MOST_CROSSES
from coterie.models.features import DEPTH, count
from coterie.service.core.encoding import KnownActions, KnownFeatures
from coterie.service.core.question import Action
from coterie.service.problems import Problem
from coterie.service.settings import Settings

SMALL = 65_536  # bytes; a smaller body is read quickly, whatever it holds
ALIKE, LONG = bytes.maketrans(b"123456789", b"0" * 9), b"0" * 309  # a number with fewer digits is finite
CLIENTS = 10_000  # remembered; the one not seen for longest is forgotten


class Rate:
    """A token bucket per client: `rate` requests per second, and bursts of one second's worth."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self.clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}  # tokens left, when

    def check(self, client: str) -> None:
        """Take a token, or raise 429 with the time until there is one."""
        if not self.rate:
            return
        now = self.clock()
        most = max(1.0, self.rate)
        left, then = self._buckets.pop(client, (most, now))
        left = min(most, left + (now - then) * self.rate)
        if len(self._buckets) >= CLIENTS:
            del self._buckets[next(iter(self._buckets))]
        if left < 1:
            self._buckets[client] = (left, now)
            message = f"more than {self.rate:g} requests a second; slow down"
            raise Problem(429, "too_many_requests", message, (1 - left) / self.rate)
        self._buckets[client] = (left - 1, now)


def check_shape(settings: Settings, body: bytes) -> None:
    """Raise if a body has more objects and lists than its features may have: reading a million takes long."""
    if len(body) < SMALL:
        return
    most = DEPTH * (settings.max_features + settings.max_actions)
    if body.count(b"[") + body.count(b"{") > most:
        message = f"more than {settings.max_features} features (max-features): over {most} objects and lists"
        raise Problem(413, "too_many_features", message)


def check_numbers(body: bytes) -> None:
    """Raise if JSON holds an integer that is too large for a float."""
    if LONG in body.translate(ALIKE):
        waiting = [msgspec.json.decode(body)]
        while waiting:
            value = waiting.pop()
            if isinstance(value, dict):
                waiting.extend(value.values())
            elif isinstance(value, list):
                waiting.extend(value)
            elif isinstance(value, int) and abs(value) > sys.float_info.max:
                digits = len(str(abs(value)))
                raise ValueError(f"{str(value)[:40]}… has {digits} digits, expected a finite number")


def check_actions(settings: Settings, actions: Collection[Any], excluded: Collection[Any] = ()) -> None:
    """Raise if a request names too many actions."""
    for what, named in (("actions", actions), ("excluded actions", excluded)):
        if len(named) > settings.max_actions:
            message = f"{len(named)} {what}, expected at most {settings.max_actions} (max-actions)"
            raise Problem(413, "too_many_actions", message)


def check_features(
    settings: Settings, context: Any, actions: Sequence[Action], slots: Sequence[Any] = ((),)
) -> list[int]:
    """Return the number of crosses of each slot; raise if the request has too many features or crosses."""
    most = settings.max_features
    shared = context.size if isinstance(context, KnownFeatures) else count(context, most)
    if isinstance(actions, KnownActions):
        own = actions.size
    else:
        known = [one.features.size for one in actions if isinstance(one.features, KnownFeatures)]
        others = [] if len(known) == len(actions) else _unknown(actions)
        own = sum(known) + (count(others, most) if others else 0)
    alone = [count(slot, most) for slot in slots]
    if shared + own + sum(alone) > most:
        raise Problem(413, "too_many_features", f"more than {most} features (max-features)")
    crosses = [(2 + shared + one) * (len(actions) + own) for one in alone]
    if sum(crosses) > MOST_CROSSES:
        found = f"the features of the context and of all actions make about {sum(crosses)} crosses"
        expected = f"expected at most {MOST_CROSSES} in all slots; send fewer features, actions or slots"
        raise Problem(422, "invalid_features", f"{found}, {expected}")
    return crosses


def _unknown(actions: Sequence[Action]) -> list[Any]:
    return [one.features for one in actions if one.features and not isinstance(one.features, KnownFeatures)]
