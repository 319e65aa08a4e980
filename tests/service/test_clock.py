"""Waits go by a clock that cannot jump; records keep the time of day."""

import asyncio
import logging
from pathlib import Path

import pytest

from coterie.data.logs.records import Rank, Tick, flatten
from coterie.data.logs.settling import settled
from coterie.service.clock import JUMP, SteadyClock
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.snapshots import snapshot
from coterie.service.snapshots.recovery import recover
from tests.service.helpers import START, Clock, ask, bandit, decide, opened, settings_of, with_coordinator

MONTH = 30 * 86_400_000


class Times:
    """A time of day that can be set, and a steady one that passes."""

    def __init__(self) -> None:
        self.day, self.steady = START, 7_000

    def clock(self) -> SteadyClock:
        return SteadyClock(lambda: self.day, lambda: self.steady)

    def set(self, by: int) -> None:
        self.day += by

    def wait(self, milliseconds: int) -> None:
        self.day += milliseconds
        self.steady += milliseconds


def test_the_clock_goes_on_through_a_jump_until_it_is_told_to_follow() -> None:
    times = Times()
    clock = times.clock()
    times.wait(5)
    assert clock() == START + 5
    for by in (MONTH, -MONTH, JUMP, -JUMP):
        before = clock()
        times.set(by)
        times.wait(3)
        assert clock() == before + 3
        assert clock.follow() == by
        assert clock() == times.day == before + 3 + by
        assert clock.follow() == 0
    times.set(JUMP - 1)  # an everyday correction
    assert clock.follow() == 0
    times.set(1)  # but they are not left to add up
    assert clock.follow() == JUMP
    assert SteadyClock().follow() == 0


@pytest.mark.parametrize("by", [MONTH, -MONTH])
def test_a_wait_ends_after_its_time_whatever_the_time_of_day_does(by: int) -> None:
    """10 s of waiting: 4 before the jump, 6 after it."""
    made = bandit(wait=10.0)
    decide(made, ask("e1"))
    made.tick(START + 4_000)
    made.jump(START + 4_000 + by, by)
    later = decide(made, ask("e2"), START + 5_000 + by)
    assert later.at == START + 5_000 + by
    states = []
    for seconds in (9.999, 10, 14.999, 15):
        made.tick(START + int(1000 * seconds) + by)
        states.append([made.events[name].state for name in ("e1", "e2")])
    assert states == [["waiting"] * 2, ["expired", "waiting"], ["expired", "waiting"], ["expired"] * 2]
    assert [row.decisions for row in made.statistics.minutes] == [1, 1]


def test_a_running_service_survives_a_clock_that_jumps_ahead_and_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    times = Times()

    async def followed(coordinator: Coordinator) -> None:
        position = coordinator.bandit.position
        async with asyncio.timeout(60):  # the coordinator looks four times a second
            while coordinator.bandit.position == position:
                await asyncio.sleep(0.01)

    async def work(coordinator: Coordinator) -> bytes:
        await coordinator.rank(ask("early"))
        await coordinator.snapshot()
        times.set(MONTH)
        await followed(coordinator)
        times.wait(1_000)
        await coordinator.rank(ask("ahead"))
        assert await coordinator.reward("early", 1.0) == "applied"  # it would have been too late
        times.set(-MONTH)
        await followed(coordinator)
        await coordinator.rank(ask("back"))
        await coordinator.snapshot()  # which may keep what did not change since the last one
        whole = recover(coordinator.store), recover(coordinator.store, from_empty=True)
        assert snapshot.dump(whole[0]) == snapshot.dump(whole[1]) == snapshot.dump(coordinator.bandit)
        times.wait(599_500)
        assert await coordinator.reward("back", 1.0) == "applied"
        assert (await coordinator.event("ahead")).state == "waiting"
        times.wait(1_000)
        assert await coordinator.reward("ahead", 1.0) == "late"
        return snapshot.dump(coordinator.bandit)

    logging.getLogger("coterie.service").propagate = True
    state = with_coordinator(settings_of(tmp_path / "log.db"), work, times.clock())
    assert sum("the time of day jumped by" in record.message for record in caplog.records) == 2
    with opened(tmp_path / "log.db") as store:
        records = [record for _, record in flatten(store.read())]
        at = {record.event: record.at for record in records if isinstance(record, Rank)}
        assert at == {"early": START, "ahead": START + MONTH + 1_000, "back": START + 1_000}
        assert [record.jump for record in records if isinstance(record, Tick) and record.jump] == [
            MONTH,
            -MONTH,
        ]
        assert snapshot.dump(recover(store, from_empty=True)) == state
        assert [one.reward for one in settled(flatten(store.read()))] == [1.0, 0.0, 1.0]


def test_a_start_with_an_earlier_time_of_day_waits_no_longer_for_it(tmp_path: Path) -> None:
    """Nobody knows how long it was away; the time of day before counts as now."""

    async def first(coordinator: Coordinator) -> None:
        await coordinator.rank(ask("e1"))

    async def second(coordinator: Coordinator) -> None:
        clock.turn(599)
        assert await coordinator.reward("e1", 1.0) == "applied"
        await coordinator.rank(ask("e2"))
        clock.turn(601)
        assert await coordinator.reward("e2", 1.0) == "late"
        assert coordinator.bandit.now == START + 1_200_000

    with_coordinator(settings_of(tmp_path / "log.db"), first, Clock(START + MONTH))
    clock = Clock(START)
    with_coordinator(settings_of(tmp_path / "log.db"), second, clock)
