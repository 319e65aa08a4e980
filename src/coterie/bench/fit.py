"""Power laws: the rows of a growth benchmark, and the exponent through them."""

from collections.abc import Iterator, Sequence

import numpy as np

from coterie.bench.rows import Row, at_most, only_told


def fit(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """Return the exponent of the power law through the costs."""
    slope, _ = np.polyfit(np.log(sizes), np.log(costs), 1)
    return float(slope)


def growth_rows(
    what: str, name: str, sizes: Sequence[int], costs: Sequence[float], unit: str, limit: float | None
) -> Iterator[Row]:
    """Yield a row for each size, then one for the exponent, which must keep `limit` if there is one."""
    for size, cost in zip(sizes, costs, strict=True):
        against = f"{name} = {sizes[0]:,}"
        yield Row("growth", f"{what}: {name} = {size:,}", cost, unit, against, **only_told(cost / costs[0]))
    exponent = fit(sizes, costs)
    promise = only_told(exponent) if limit is None else at_most(limit, exponent)
    yield Row("growth", f"{what}: cost ~ {name} ** exponent", exponent, "", "1", **promise)
