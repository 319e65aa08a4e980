"""Frequency caps in many decisions of two services on one store, and what their log tells of other policies."""

import asyncio
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.data.logs.records import Rank, flatten
from coterie.data.logs.rules import Cap
from coterie.evaluation import evaluate
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.log.store import open_store
from tests.service.coordination.test_many import with_services
from tests.service.core.test_caps import chosen, hold
from tests.service.helpers import ask


@pytest.mark.slow
def test_caps_hold_exactly_with_two_services_slots_and_retries_and_the_log_tells_the_truth(
    tmp_path: Path,
) -> None:
    """COTERIE_DECISIONS is how many there are instead of 100,000. Off-policy estimates hold what is really earned."""
    n = int(os.environ.get("COTERIE_DECISIONS", "100000"))
    caps = (Cap(2, 40.0), Cap(5, 300.0), Cap(1, 60.0, "c"))
    pays = dict(zip("abcdefgh", (0.5, 0.1, 0.8, 0.3, 0.2, 0.4, 0.6, 0.7), strict=True))
    rng = np.random.default_rng(6)
    store = str(tmp_path / "log.db")
    truth: dict[str, list[float]] = {"uniform": [], "baseline": []}

    async def work(services: list[Coordinator]) -> None:
        async def visit(k: int, user: str, draws: Any) -> None:
            first, second = services[k % 2], services[(k + 1) % 2]
            if k % 10 == 0:
                page = [ask(f"{k}\u001f{i}", user, "abcdefgh", slot=str(i)) for i in range(2)]
                shown = await first.rank_slots(page)
                repeat: Any = await second.rank_slots(page)
            else:
                asked = ask(f"e{k}", user, "abcdefgh")
                shown, repeat = [await first.rank(asked)], None
                if k % 10 == 1:
                    repeat = [await second.rank(asked)]
            assert repeat is None or repeat == shown
            for record, draw in zip(shown, draws, strict=False):
                await second.reward(record.event, float(draw < pays[chosen(record)]))

        for start in range(0, n, 40):
            users = rng.integers(n // 20, size=40)
            await asyncio.gather(*(visit(start + k, f"u{users[k]}", rng.random(2)) for k in range(40)))
            services[0].clock.turn(0.5)  # type: ignore[attr-defined]

    with_services(store, work, count=2, caps=caps, exploration=0.3, wait=5.0)
    with closing(open_store(store, create=False)) as opened:
        records = [record for _, record in flatten(opened.read()) if isinstance(record, Rank)]
    assert len(records) >= n
    assert hold(records, caps) > n / 50
    for record in records:
        left = [name for k, name in enumerate(record.actions) if k not in record.excluded]
        truth["uniform"].append(float(np.mean([pays[name] for name in left])))
        truth["baseline"].append(pays[record.actions[record.baseline]])
    found = evaluate(store, ["logged", "uniform", "baseline"])
    for name, values in truth.items():
        low, high = found[name].estimates["dr"][1:]
        print(f"{name}: {low:.4f} to {high:.4f}, really {np.mean(values):.4f}, {len(records):,} decisions")
        assert low <= np.mean(values) <= high
