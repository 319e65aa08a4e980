"""Power laws: the rows of a growth benchmark, and the fitted exponent."""

from collections.abc import Iterator, Sequence

import numpy as np

from coterie.bench.rows import Row, at_most, no_limit


def fit(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """Return the exponent of the power law fitted to the costs."""
    slope, _ = np.polyfit(np.log(sizes), np.log(costs), 1)
    return float(slope)


def growth_rows(
    what: str, name: str, sizes: Sequence[int], costs: Sequence[float], unit: str, limit: float | None
) -> Iterator[Row]:
    """Yield a row for each size, then one for the exponent, which must keep `limit` if there is one."""
    for size, cost in zip(sizes, costs, strict=True):
        against = f"{name} = {sizes[0]:,}"
        yield Row("growth", f"{what}: {name} = {size:,}", cost, unit, against, **no_limit(cost / costs[0]))
    exponent = fit(sizes, costs)
    promise = no_limit(exponent) if limit is None else at_most(limit, exponent)
    yield Row("growth", f"{what}: cost ~ {name} ** exponent", exponent, "", "1", **promise)
