"""R7: memory is bounded by the configured limits, however long it runs."""

import tracemalloc

from coterie.service.engine import Action, Question
from coterie.service.statistics import KEPT
from tests.service.helpers import START, engine


def test_a_long_run_stays_within_its_limits() -> None:
    made = engine(max_events=300, max_users=50, max_items=40, wait=20.0)

    def run(first: int, rounds: int) -> int:
        for k in range(first, first + rounds):
            actions = [Action(f"item-{(k + j) % 40}") for j in range(5)]
            made.rank(Question(f"event-{k}", f"user-{k * 7919 % 1000}", actions), START + 100 * k)
            if k % 2:
                made.reward(f"event-{k - k % 3}", 1.0, START + 100 * k)
            made.drain()
            assert len(made.events) <= 300
            assert len(made.users) <= 50
            assert len(made._deadlines) <= 600
        return tracemalloc.get_traced_memory()[0]

    run(0, 2000)
    tracemalloc.start()
    first = run(2000, 1500)
    second = run(3500, 3000)
    tracemalloc.stop()
    assert second - first < 200_000, f"{second - first} bytes more after 3,000 further rounds"
    assert len(made.names) == len(made.ids) == len(made.users) == 50
    assert len(made.known_items) == 40
    assert len(made.statistics.minutes) <= KEPT
    assert made.items is not None
    assert len(made.items.users) <= 50
