"""What is refused before any work is done: too large, too often, and how it is said."""

import time
from collections.abc import Callable

from coterie.service.problems import Problem
from coterie.service.settings import Settings

CLIENTS = 10_000  # remembered; the one unseen for longest goes


class Rate:
    """A token bucket a client: `rate` requests a second, a second's worth at once."""

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
            raise Problem(
                429,
                "too_many_requests",
                f"more than {self.rate:g} requests a second; slow down",
                (1 - left) / self.rate,
            )
        self._buckets[client] = (left - 1, now)


def check_sizes(settings: Settings, actions: int, features: int) -> None:
    """Raise if a request names too many actions or features."""
    if actions > settings.max_actions:
        raise Problem(
            413,
            "too_many_actions",
            f"{actions} actions, expected at most {settings.max_actions} (max-actions)",
        )
    if features > settings.max_features:
        raise Problem(
            413,
            "too_many_features",
            f"{features} features, expected at most {settings.max_features} (max-features)",
        )
