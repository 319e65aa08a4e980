"""Work beside requests goes on after any error."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coterie.errors import FileError
from coterie.service.coordination import background
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.repeating import repeat
from tests.service.helpers import Clock, ask, settings_of, with_coordinator


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(300):
        while not condition():
            await asyncio.sleep(0.01)


def test_an_error_is_logged_once_and_the_work_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    async def work() -> None:
        calls.append(len(calls))
        if len(calls) < 4:
            raise ValueError("a fault of ours") if len(calls) == 1 else FileError("a file")

    async def go() -> None:
        task = asyncio.create_task(repeat(work, 0.001, "counting"))
        await until(lambda: len(calls) > 6)
        task.cancel()

    with caplog.at_level(logging.ERROR, "coterie.service"):
        asyncio.run(go())
    (line,) = caplog.records
    assert line.message == "counting failed, trying again: a fault of ours"
    assert line.exc_info is not None


def test_waits_end_and_snapshots_are_kept_after_an_error_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "TICK_EVERY", 0.01)
    failed: list[str] = []

    def once(owner: Any, name: str) -> None:
        usual = getattr(owner, name)

        def fail(*arguments: Any) -> Any:
            monkeypatch.setattr(owner, name, usual)
            failed.append(name)
            raise RuntimeError(name)

        monkeypatch.setattr(owner, name, fail)

    clock = Clock()

    async def live(coordinator: Coordinator) -> None:
        store = coordinator.store
        for name in ("end", "tail", "newest", "bounds"):
            once(store, name)
        await until(lambda: {"end", "tail", "bounds"} <= set(failed))
        await coordinator.rank(ask("one"))
        clock.turn(601)
        await until(lambda: coordinator.bandit.statistics.total.learned == 1)
        for k in range(5):
            await coordinator.rank(ask(f"more-{k}"))
        await until(lambda: "newest" in failed)
        await until(lambda: store.newest() > 0)
        await until(lambda: store._known_ids.complete)

    with_coordinator(settings_of(tmp_path / "log.db", snapshot_every=3), live, clock)
