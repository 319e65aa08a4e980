"""The bank over items, against plain dictionaries."""

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.errors import FileError
from coterie.models import Means
from coterie.models._kernels.rows.dispatch import squared_distance

Facts = dict[Any, tuple[int, float]]
action = st.tuples(
    st.sampled_from(["learn", "pool", "unpool", "replace", "clear"]), st.integers(0, 6), st.integers(0, 40)
)


def weights(facts: Facts) -> dict[Any, float]:
    return {item: total / (1 + count) for item, (count, total) in facts.items() if count}


def distance(a: Facts, b: Facts) -> float:
    u, v = weights(a), weights(b)
    return sum((u.get(item, 0.0) - v.get(item, 0.0)) ** 2 for item in {*u, *v})


@settings(deadline=None, max_examples=60)
@given(st.lists(action, max_size=120), st.integers(0, 99))
def test_a_bank_of_items_equals_dictionaries_whatever_happens(actions: list[Any], seed: int) -> None:
    """Seven rows learn, are pooled into one and out again, and are dropped; the table grows on the way."""
    rng = np.random.default_rng(seed)
    bank, pools = Means(), None
    pools = bank.sibling()
    pool = pools.take()
    facts: list[Facts] = [defaultdict(lambda: (0, 0.0)) for _ in range(7)]
    pooled: Facts = defaultdict(lambda: (0, 0.0))
    inside: list[tuple[int, Facts]] = []
    for _ in range(7):
        bank.take()
    for what, row, item in actions:
        if what == "learn" and not any(row == r for r, _ in inside):
            payoff = float(rng.uniform(-1, 1))
            bank.update(row, bank.learnable([item]), payoff)
            count, total = facts[row][item]
            facts[row][item] = (count + 1, total + payoff)
        elif what == "pool" and not any(row == r for r, _ in inside):
            pools.pool(pool, bank, row)
            inside.append((row, facts[row]))
        elif what == "unpool" and any(row == r for r, _ in inside):
            pools.pool(pool, bank, row, -1)
            inside = [pair for pair in inside if pair[0] != row]
        elif what == "replace" and not inside:
            bank.replace(row)
            facts[row] = facts[6]
            facts[6] = defaultdict(lambda: (0, 0.0))
            assert bank.take() == 6
        elif what == "clear" and not inside:
            bank.clear(row)
            facts[row] = defaultdict(lambda: (0, 0.0))
    pooled = defaultdict(lambda: (0, 0.0))
    for _, part in inside:
        for item, (count, total) in part.items():
            pooled[item] = (pooled[item][0] + count, pooled[item][1] + total)
    items = list(range(42))
    for view, want in [(bank.view(r, bank.numbers(items)), facts[r]) for r in range(7)] + [
        (pools.view(pool, bank.numbers(items)), pooled)
    ]:
        assert view.estimate == pytest.approx([weights(want).get(i, 0.0) for i in items], abs=1e-12)
        assert view.spread == pytest.approx([(1 + want.get(i, (0, 0.0))[0]) ** -0.5 for i in items])
    for r in range(7):
        assert squared_distance(bank.rows, r, pools.rows, pool) == pytest.approx(
            distance(facts[r], pooled), abs=1e-12
        )
        assert bank.distance(r, bank, 0) == pytest.approx(distance(facts[r], facts[0]) ** 0.5, abs=1e-12)
    assert bank.rows.size[4] == sum(len(weights(f)) for f in facts)
    assert pools.rows.size[4] == len(weights(pooled))


def test_memory_follows_the_touched_pairs() -> None:
    bank = Means()
    for _ in range(5000):
        bank.take()
    for item in range(3000):
        bank.update(item, bank.learnable([item]), 1.0)
    assert bank.rows.size[4] == 3000
    assert len(bank.rows.row) < 3000 * 3


def test_looking_at_an_item_does_not_make_it_known() -> None:
    bank = Means()
    numbers = bank.numbers(["a", "b", "a"])
    assert numbers[0] == numbers[2] < 0
    assert numbers[1] not in (numbers[0],)
    assert not bank.items


def test_saved_rows_come_back_bit_for_bit_and_damage_is_seen() -> None:
    rng = np.random.default_rng(3)
    bank = Means()
    for _ in range(5):
        bank.take()
    for _ in range(200):
        bank.update(int(rng.integers(5)), bank.learnable([int(rng.integers(30))]), float(rng.uniform(-1, 1)))
    rows = np.array([4, 0, 2])
    tensors = bank.tensors("user", rows)
    again = Means()
    again.rows = again.restore("user", tensors, 3)
    assert again.items == bank.items
    for i, row in enumerate(rows.tolist()):
        assert squared_distance(again.rows, i, again.rows, 0) == squared_distance(
            bank.rows, row, bank.rows, 4
        )
    back = again.tensors("user", np.arange(3))
    for name in tensors:
        assert back[name].tobytes() == tensors[name].tobytes()
    for name, change in (
        ("row", 9),
        ("item", -40),
        ("count", 10**6),
        ("total", 50.0),
        ("square", 1.0),
        ("times", 1),
    ):
        broken = {key: tensor.copy() for key, tensor in tensors.items()}
        broken[f"user_{name}"][0] += change
        with pytest.raises(FileError, match="contradict each other"):
            Means().restore("user", broken, 3)
    twice = {key: tensor.copy() for key, tensor in tensors.items()}
    twice["user_item"][1] = twice["user_item"][0]
    with pytest.raises(FileError, match="contradict each other"):
        Means().restore("user", twice, 3)
