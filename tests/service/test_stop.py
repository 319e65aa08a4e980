"""R9: a graceful stop drains, syncs, snapshots and exits 0 within its limit."""

import asyncio
import time
from pathlib import Path

import pytest

from coterie.service import snapshot
from coterie.service.loadtest import Plan, Tally, lost, press
from coterie.service.recovery import recover
from tests.service.helpers import opened
from tests.service.process import service


def test_a_stop_under_load_finishes_what_it_accepted(tmp_path: Path) -> None:
    path = tmp_path / "log.db"

    async def pressed(url: str, stop: asyncio.Event) -> Tally:
        work = asyncio.create_task(
            press(url, Plan(seconds=30, connections=8, users=20, actions=5, rewards=0.5))
        )
        await asyncio.sleep(1.0)
        stop.set()
        return await work

    with service("--store", str(path), "--stop-within", "10") as running:

        async def go() -> tuple[Tally, float]:
            stop = asyncio.Event()
            work = asyncio.create_task(pressed(running.url, stop))
            await stop.wait()
            start = time.monotonic()
            running.process.terminate()
            await asyncio.to_thread(running.process.wait, 30)
            return await work, time.monotonic() - start

        tally, seconds = asyncio.run(go())
        assert running.process.returncode == 0, running.stop()[1]
    assert seconds < 12
    assert len(tally.decided) > 20
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
