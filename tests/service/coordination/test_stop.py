"""R9: a graceful stop drains, syncs, snapshots and exits 0 within its limit."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from coterie.bench.service.loadtest import Plan, Tally, lost, press
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.snapshots import snapshot
from coterie.service.snapshots.recovery import recover
from tests.service.helpers import ask, opened, settings_of, with_coordinator
from tests.service.process import service


def test_a_stop_under_load_finishes_what_it_accepted(tmp_path: Path) -> None:
    path = tmp_path / "log.db"

    tally = Tally()

    async def go(url: str, stop: Callable[[], None]) -> None:
        plan = Plan(seconds=3600, connections=8, users=20, actions=5, rewards=0.5)
        work = asyncio.create_task(press(url, plan, tally))
        while len(tally.decided) < 100:
            assert not work.done()
            await asyncio.sleep(0.01)
        stop()
        await work

    with service("--store", str(path), "--settings", "stop-within=100") as running:
        asyncio.run(go(running.url, running.process.terminate))
        assert running.process.wait(300) == 0, running.stop()[1]
    assert lost(path, tally) == (set(), set())
    with opened(path) as store:
        (position, state), *_ = store.snapshots()
        assert position == store.bounds()[1]
        restored = snapshot.restore(state, None, store.piece)
        assert snapshot.dump(restored) == snapshot.dump(recover(store, from_empty=True))


def test_strangers_are_not_served_without_a_key(tmp_path: Path) -> None:
    with (
        pytest.raises(RuntimeError, match="there is no key; make one"),
        service("--store", str(tmp_path / "log.db"), environment={"COTERIE_HOST": "0.0.0.0"}),
    ):
        pass


def test_what_nobody_waits_for_any_more_is_not_written(tmp_path: Path) -> None:
    """Else a stop would write, or try to, what clients have given up while the store was away."""

    async def live(coordinator: Coordinator) -> None:
        async with coordinator.sequencer._following:  # nothing is written meanwhile
            asked = [asyncio.create_task(coordinator.rank(ask(f"e{k}"))) for k in range(3)]
            for _ in range(20):
                await asyncio.sleep(0)
            asked[1].cancel()
            await asyncio.sleep(0)
        await asyncio.gather(*asked, return_exceptions=True)
        assert list(coordinator.bandit.events) == ["e0", "e2"]

    with_coordinator(settings_of(tmp_path / "log.db"), live)
