"""How the cost of a record grows: with users, items, candidates, and records played."""

import time
from collections.abc import Callable, Iterator

from coterie import CAB
from coterie.bench.click_log import Clicks
from coterie.bench.measuring import Row, growth_rows
from coterie.bench.suites import dense_growth
from coterie.experiments.run.replay import replay

USERS, ITEMS, CANDIDATES = 10_000, 105, 15


def rows(quick: bool, on_progress: Callable[[str], None]) -> Iterator[Row]:
    """Measure the cost of one-hot CAB's records and of dense CAB's rounds, and fit the exponents."""
    records = 500_000 if quick else 2_000_000
    cost_of(records // 10)  # compiled before it is timed
    for name, values, limit in (
        ("n_users", (10_000, 31_623, 100_000, 316_228, 1_000_000), 0.2),
        ("n_items", (105, 420, 1_680, 5_000), None),
        ("n_candidates", (5, 15, 45, 105), None),
        ("records", (records // 16, records // 4, records), None),
    ):
        costs = []
        for value in values:
            on_progress(f"one-hot: {name} = {value:,}")
            costs.append(cost_of(value) if name == "records" else cost_of(records, **{name: value}))
        yield from growth_rows("one-hot", name, values, costs, "µs/record", limit)
    yield from dense_growth.rows(quick, on_progress)


def cost_of(
    records: int, n_users: int = USERS, n_items: int = ITEMS, n_candidates: int = CANDIDATES
) -> float:
    """Return the microseconds per record of a whole replay from an empty policy, without drawing the log."""
    policy, spent = CAB(one_hot=True, alpha=0.1, gamma=0.2), 0.0
    for log in Clicks(n_users, n_items, n_candidates).records(records):
        began = time.thread_time()
        replay(policy, *log)
        spent += time.thread_time() - began
    return 1e6 * spent / records
