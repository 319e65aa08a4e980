"""Events that leave memory are learned like all others, from the log; the twin keeps all of them in memory."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.data.logs.records import Rank, decode, pack
from coterie.data.logs.rules import Challenger, Config
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.core.bandit import Bandit
from coterie.service.core.question import Action, Question
from coterie.service.log.reading import LogReader
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.log.store import Append
from coterie.service.problems import Problem
from coterie.service.snapshots import snapshot
from coterie.service.snapshots.recovery import recover
from tests.service.helpers import START, Clock, ask, bandit, opened, settings_of, with_coordinator

SMALL = 3_000  # bytes: two or three whole events
SUMS = 30_000  # with room for sums that are not final


class KeptLog:
    """A log in memory, from which a bandit reads what it no longer remembers."""

    def __init__(self, made: Bandit) -> None:
        self.made, self.records, self.places, self.reads = made, list[bytes](), dict[str, int](), 0
        made.log = self

    def take(self) -> None:
        """Take what the bandit wrote since the last call."""
        for data in self.made.drain().records:
            record = decode(data)
            if isinstance(record, Rank):
                self.places[record.event] = len(self.records)
            self.records.append(data)

    def decision(self, position: int) -> Rank | None:
        self.reads += 1
        found = decode(self.records[position])
        return found if isinstance(found, Rank) else None

    def locate(self, event: str) -> int | None:
        return self.places.get(event)


def _live(made: Bandit, take: Any, aggregation: Any, seed: int) -> list[Any]:
    """Let some of everything happen, and return what was answered."""
    chance, at, said = random.Random(seed), START, list[Any]()
    for k in range(500):
        at += chance.choice((0, 0, 10, 400))
        user = f"user-{chance.randrange(20)}"
        features = [{"size": chance.randrange(4)}] if k % 2 else None
        question = Question(f"e{k}", user, [Action(name, features) for name in "abc"], deferred=k % 7 == 0)
        said.append(made.rank(question, at).probability)
        take()
        for _ in range(chance.randrange(3)):
            event, name = f"e{chance.randrange(max(0, k - 60), k + 2)}", chance.choice((None, "one", "two"))
            if chance.random() < 0.3:
                said.append((event, made.activate(event, at)))
            said.append((event, made.reward(event, chance.choice((1.0, 0.25, -1.0)), at, name)))
        if k % 100 == 50:
            made.jump(at + 3_600_000, 3_600_000)
            at += 3_600_000
        if k % 100 == 70:
            made.forget(user, at)
        if k == 250:
            made.configure(Config(aggregation=aggregation, wait=2.0, max_event_bytes=made.config.max_event_bytes,
                                  challenger=Challenger("linucb", 0.3)), at)  # fmt: skip
        take()
    made.tick(at + 10**9)
    take()
    return said


def _learned(made: Bandit) -> Any:
    tensors = [one.tensors() for each in made.models for one in each.made.values()]
    return made.statistics.total, made.trial, made.remembered.open, tensors


@pytest.mark.parametrize("aggregation", ["earliest", "sum"])
def test_events_that_left_memory_are_learned_like_those_in_it(aggregation: Any) -> None:
    twins = []
    small_size = SMALL if aggregation == "earliest" else SUMS
    for size in (small_size, 10**9):
        made = bandit(aggregation=aggregation, wait=6.0, max_event_bytes=size)
        log = KeptLog(made)
        said = _live(made, log.take, aggregation, 3)
        # Twice the bound is not reached: each bandit, the challenger too, counts its own.
        assert made.remembered.size <= size
        twins.append((said, *_learned(made)))
        assert (log.reads > 300) == (size == small_size)
        assert made.remembered.removed == 0
    (said, *sums), (expected, *other_sums) = twins
    # After its wait, an event that is not in memory is late, whatever became of it.
    assert all(a == b or a[1] == "late" for a, b in zip(said, expected, strict=True))
    assert sums[:3] == other_sums[:3]
    for small, large in zip(sums[3], other_sums[3], strict=True):
        assert small.keys() == large.keys()
        assert all(np.array_equal(small[name], large[name]) for name in small)


@pytest.mark.parametrize("aggregation", ["earliest", "sum"])
def test_a_replay_that_reads_old_decisions_is_equal_to_the_bit(aggregation: Any) -> None:
    made = bandit(aggregation=aggregation, wait=6.0, max_event_bytes=SMALL)  # some sums have no room
    log = KeptLog(made)
    _live(made, log.take, aggregation, 4)
    assert log.reads > 300
    again = Bandit()
    again.log = log
    for position, data in enumerate(log.records):
        again.apply(decode(data))
        again.drain()
        if position % 400 == 300:  # a snapshot in between changes nothing
            again = snapshot.restore(snapshot.dump(again))
            again.log = log
    assert snapshot.dump(again) == snapshot.dump(made)


def test_a_wait_that_ends_early_for_want_of_room_teaches_nothing() -> None:
    """The bound has room for 31 waits of 32 bytes. The others are removed, counted, and not learned as zeros."""
    made = bandit(default_reward=-1.0, max_event_bytes=1_000)
    log = KeptLog(made)
    for k in range(100):
        made.rank(ask(f"e{k}"), START + k)
        log.take()
    assert (made.remembered.open, made.remembered.removed, made.policies.learned) == (31, 69, 0)
    assert made.reward("e0", 1.0, START + 200) == "late"
    assert made.reward("e99", 1.0, START + 200) == "applied"
    made.tick(START + 10**7)
    assert (made.remembered.open, made.remembered.removed, made.policies.learned) == (0, 69, 31)


def test_a_decision_that_was_deleted_from_the_log_teaches_nothing() -> None:
    made = bandit(max_event_bytes=SMALL)
    log = KeptLog(made)
    for k in range(50):
        made.rank(ask(f"e{k}"), START + k)
        log.take()
    log.records = [log.records[0]] * len(log.records)  # no decision is left
    made.tick(START + 10**7)
    assert made.policies.learned == len(made.events)
    assert made.remembered.removed == 50 - len(made.events)
    assert made.remembered.open == 0


def test_a_retry_is_answered_alike_as_long_as_the_log_has_the_decision(tmp_path: Path) -> None:
    """R3, for events that left memory, before and after a restart."""
    settings = settings_of(tmp_path / "log.db", Config(max_event_bytes=SMALL, exploration=0.5, wait=30.0))
    clock, answers = Clock(), list[Rank]()

    async def work(coordinator: Coordinator) -> None:
        for k in range(30 if not answers else 0):
            answers.append(await coordinator.rank(ask(f"e{k}")))
        assert "e0" not in coordinator.bandit.events
        position = coordinator.bandit.position
        for k, answer in enumerate(answers):
            assert await coordinator.rank(ask(f"e{k}")) == answer
        assert coordinator.bandit.position == position
        with pytest.raises(Problem, match="event 'e0' was decided for another request") as raised:
            await coordinator.rank(ask("e0", actions="ab"))
        assert raised.value.status == 409
        assert (await coordinator.event("e0")).position == 1

    with_coordinator(settings, work, clock)

    async def rewarded(coordinator: Coordinator) -> None:
        await work(coordinator)
        assert [await coordinator.reward("e1", 1.0) for _ in range(2)] == ["applied", "duplicate"]
        assert await coordinator.reward("never", 1.0) == "unknown_event"
        clock.turn(40)
        assert await coordinator.reward("e2", 1.0) == "late"
        assert coordinator.bandit.policies.learned == 30
        await work(coordinator)

    with_coordinator(settings, rewarded, clock)
    with opened(tmp_path / "log.db") as store:
        assert snapshot.dump(recover(store)) == snapshot.dump(recover(store, from_empty=True))


def run_hot(folder: Path, rate: int, seconds: int, config: Config) -> tuple[Bandit, int]:
    """Decide at a rate, and send each reward at a random time of its wait; returns the largest size of events."""
    chance, largest = random.Random(5), 0
    store = SqliteStore(str(folder / "log.db"))
    made = Bandit()
    made.log = LogReader(store)
    made.configure(config, START)
    due: dict[int, list[str]] = {}
    for second in range(seconds + int(config.wait)):
        at = START + 1000 * second
        for event in due.pop(second, ()):
            assert made.reward(event, 1.0, at) == "applied"
        for k in range(rate if second < seconds else 0):
            name = f"{second}-{k}"
            made.rank(Question(name, f"user-{k % 50}", [Action("a"), Action("b")], fresh=True), at)
            due.setdefault(second + chance.randrange(1, int(config.wait)), []).append(name)
        made.tick(at)
        largest = max(largest, made.remembered.size)
        records, named, gone, scrub = made.drain()
        if records:
            store.append(Append(pack(made.position - len(records), records), named, gone, scrub))
    store.close()
    return made, largest


def check_no_false_zero(made: Bandit, largest: int, decisions: int) -> None:
    total = made.statistics.total
    assert (total.decisions, total.learned, total.earned) == (decisions, decisions, decisions)
    assert (made.remembered.open, made.remembered.removed) == (0, 0)
    assert largest <= made.config.max_event_bytes + 2_000


def test_no_false_zero_is_learned_when_events_leave_memory(tmp_path: Path) -> None:
    config = Config(wait=30.0, max_event_bytes=100_000, record_reasons=False)
    check_no_false_zero(*run_hot(tmp_path, 40, 60, config), 40 * 60)


@pytest.mark.slow
def test_ten_times_the_default_rate_learns_no_false_zero(tmp_path: Path) -> None:
    """3,330 decisions per second for 620 s, with the default wait and the default memory: each reward is learned."""
    config = Config(record_reasons=False)
    check_no_false_zero(*run_hot(tmp_path, 3_330, 620, config), 3_330 * 620)
