"""How long calls take: quantiles of Prometheus histograms."""

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct


class Latency(Struct, frozen=True, rename="camel"):
    """Seconds, of the calls since the start; null where there were none."""

    p50: float | None
    p90: float | None
    p99: float | None
    calls: int


def latency(families: Iterable[Any], name: str, route: str = "") -> Latency:
    """Return the quantiles of a histogram, over all routes that end with `route`."""
    counts: dict[float, float] = {}
    for family in families:
        for sample in family.samples if family.name == name else ():
            if sample.name == f"{name}_bucket" and sample.labels.get("route", "").endswith(route):
                bound = float(sample.labels["le"])
                counts[bound] = counts.get(bound, 0.0) + sample.value
    bounds = sorted(counts.items())
    p50, p90, p99 = (quantile(bounds, share) for share in (0.5, 0.9, 0.99))
    return Latency(p50, p90, p99, int(bounds[-1][1]) if bounds else 0)


def quantile(bounds: Sequence[tuple[float, float]], share: float) -> float | None:
    """Return a quantile of pairs (upper bound, count up to it), interpolated within its bucket.

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
            # Rounding could lead past the end of the bucket.
            return min(upper, lower + (upper - lower) * (share * total - below) / (count - below))
        below, lower = count, upper
    return lower
