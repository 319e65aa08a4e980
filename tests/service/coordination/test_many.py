"""Equal services on one store: any of them answers any request, and all have the same state."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coterie.data.logs.records import Batch, Rank, Reward, flatten
from coterie.data.logs.rules import Cap, Config
from coterie.data.logs.settling import settled
from coterie.errors import FileError
from coterie.service.coordination import sequencer
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.core.answers import ranking_of
from coterie.service.core.bandit import Bandit
from coterie.service.log.store import open_store
from coterie.service.problems import Problem
from coterie.service.settings import Settings
from coterie.service.snapshots import snapshot
from coterie.service.snapshots.recovery import recover
from coterie.service.store_errors import PassingError
from tests.service import postgres
from tests.service.core.test_caps import hold
from tests.service.helpers import Clock, ask

Work = Callable[[list[Coordinator]], Awaitable[None]]


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with postgres.server() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "log.db")
    return postgres.emptied(request.getfixturevalue("database"))


def with_services(url: str, work: Work, count: int = 3, replay: bool = True, **config: Any) -> None:
    """Start services on one store, let `work` use them, and compare their states with each other and a replay."""

    async def go() -> None:
        clock = Clock()
        settings = Settings(store=url, config=Config(**config))
        services = [Coordinator(settings, open_store(url, shared=True), clock) for _ in range(count)]
        try:
            for service in services:
                await service.start()
            await work(services)
            if not replay:
                return
            bandits = await at_one_position(services)
            assert len({snapshot.dump(bandit) for bandit in bandits}) == 1
            assert all(bandit.names == bandits[0].names for bandit in bandits)
        finally:
            for service in services:
                await service.stop()

    asyncio.run(go())


async def at_one_position(services: list[Coordinator]) -> list[Bandit]:
    """Return what services and a replay hold after the same records: any service may end a wait meanwhile."""
    for _ in range(100):
        for service in services:
            await service.sequencer.follow()
        replayed = recover(services[0].store, from_empty=True)
        bandits = [*(service.bandit for service in services), replayed]
        if len({bandit.position for bandit in bandits}) == 1:
            break
    return bandits


def test_a_reward_may_go_to_any_service_as_soon_as_the_decision_was_answered(url: str) -> None:
    async def work(services: list[Coordinator]) -> None:
        a, b, c = services
        for k in range(20):
            made = await a.rank(ask(f"e{k}", f"user-{k % 3}"))
            assert await b.reward(f"e{k}", float(made.choice == 1)) == "applied"
            assert await c.reward(f"e{k}", 1.0) == "duplicate"
        assert await c.reward("unheard-of", 1.0) == "unknown_event"

    with_services(url, work)


def test_what_one_service_is_told_of_friends_all_know(url: str) -> None:
    async def work(services: list[Coordinator]) -> None:
        a, b, c = services
        await a.befriend("ann", {"bob": 1.0, "carl": 1.0})
        await b.befriend("dora", {"bob": 2.0, "emil": 1.0})  # planned twice: the log had ended earlier
        assert b.bandit.friends_of("bob") == {"ann": 1.0, "dora": 2.0}
        assert b.bandit.names == {"ann": 0, "bob": 1, "carl": 2, "dora": 3, "emil": 4}
        told = [service.befriend("ann", {f"friend-{k}": 1.0}) for k, service in enumerate(services)]
        await asyncio.gather(*told, c.rank(ask("e", "friend-1")), a.rank(ask("e2", "new")))
        assert await c.forget("dora")
        await a.sequencer.follow()
        assert a.bandit.friends_of("bob") == {}
        assert len(a.bandit.friends_of("ann")) == 1

    with_services(url, work)


def test_an_event_has_one_decision_wherever_it_is_asked_for(url: str) -> None:
    async def work(services: list[Coordinator]) -> None:
        for k in range(20):
            asked = ask(f"e{k}", "ann")
            found = await asyncio.gather(*(service.rank(asked) for service in services))
            assert len({repr(ranking_of(one)) for one in found}) == 1
            for service in services:
                with pytest.raises(Problem, match="decided for another request"):
                    await service.rank(ask(f"e{k}", "bob"))
        records = [record for _, record in flatten(services[0].store.read())]
        assert sum(isinstance(record, Rank) for record in records) == 20

    with_services(url, work)


def test_all_at_once_is_learned_once_and_ends_in_one_state(url: str) -> None:
    async def work(services: list[Coordinator]) -> None:
        async def visit(k: int) -> int:
            first, second = services[k % 3], services[(k + 1) % 3]
            await first.rank(ask(f"e{k}", f"user-{k % 11}"))
            said = await asyncio.gather(first.reward(f"e{k}", 1.0), second.reward(f"e{k}", 0.5))
            assert sorted(said) == ["applied", "duplicate"]
            return k

        assert len(await asyncio.gather(*map(visit, range(60)))) == 60
        records = [record for _, record in flatten(services[0].store.read())]
        outcomes = [record.outcome for record in records if isinstance(record, Reward)]
        assert len(outcomes) == 120  # two that were planned at once may both seem to be applied
        assert sum(one.count for one in settled(flatten(services[0].store.read()))) == 60
        assert all(0 <= record.state <= k for k, record in enumerate(records) if isinstance(record, Rank))
        await services[0].sequencer.follow()
        assert services[0].bandit.policies.learned == 60

    with_services(url, work)


def test_a_user_who_is_forgotten_is_forgotten_by_all(url: str) -> None:
    async def work(services: list[Coordinator]) -> None:
        a, b, _ = services
        await a.rank(ask("e1", "ann"))
        await a.reward("e1", 1.0)
        assert await b.forget("ann")
        await a.sequencer.follow()
        assert all("ann" not in service.bandit.names for service in services[:2])
        assert await a.reward("e1", 1.0) == "unknown_event"
        made = await a.rank(ask("e1", "ann"))
        assert made.user == 1

    with_services(url, work)


def test_frequency_caps_hold_exactly_among_services_that_decide_at_once(url: str) -> None:
    caps = (Cap(2, 10.0), Cap(5, 60.0), Cap(1, 30.0, "c"))

    async def work(services: list[Coordinator]) -> None:
        async def visit(k: int) -> None:
            asked, service = ask(f"e{k}", f"user-{k % 3}", "abcd"), services[k % 2]
            if k % 5 == 0:
                page = [ask(f"{k}\u001f{i}", "user-0", "abcd", slot=str(i)) for i in range(2)]
                found = await asyncio.gather(*(one.rank_slots(page) for one in services))
                assert found[0] == found[1]
            elif k % 5 == 1:
                both = await asyncio.gather(*(one.rank(asked) for one in services))
                assert both[0] == both[1]
            else:
                await service.rank(asked)

        for turn in range(8):
            await asyncio.gather(*(visit(12 * turn + k) for k in range(12)))
            services[0].clock.turn(4.0)  # type: ignore[attr-defined]
        records = [record for _, record in flatten(services[0].store.read()) if isinstance(record, Rank)]
        assert hold(records, caps) > 60

    with_services(url, work, count=2, caps=caps, exploration=0.3)


def test_names_are_followed_with_users_who_come_are_forgotten_make_room_and_come_back(url: str) -> None:
    async def work(services: list[Coordinator]) -> None:
        for k in range(24):
            user = f"user {k * 7 % 11}"
            await services[k % 2].rank(ask(f"event {k}", user))
            if k % 5 == 4:
                assert await services[1].forget(user)
            if k % 3 == 0:
                await services[2].sequencer.follow()
        last = services[2]
        await last.sequencer.follow()
        assert len(last.bandit.names) == 6
        await last.rank(ask("last", next(iter(last.bandit.names))))
        assert last.store.users() == last.bandit.ids

    with_services(url, work, max_users=6)


@pytest.mark.parametrize("looks", [1, 2])
def test_a_user_may_be_scrubbed_between_two_looks(url: str, looks: int) -> None:
    """The other service knows the decision by its old name; its reward names the decision by its position."""

    async def work(services: list[Coordinator]) -> None:
        a, b = services
        await a.rank(ask("before", "ann"))
        await b.sequencer.follow()
        await a.reward("before", 1.0)
        if looks == 2:
            await b.sequencer.follow()
        await a.forget("ann")
        await a.rank(ask("after", "bob"))
        await b.sequencer.follow()
        assert b.bandit.statistics.total.learned == 1

    with_services(url, work, count=2)


def test_decisions_and_rewards_of_known_users_are_planned_once_whatever_others_write(url: str) -> None:
    async def work(services: list[Coordinator]) -> None:
        a, b = services
        await a.rank(ask("known", "ann"))
        await b.news()
        for service in services:
            for task in service._tasks:
                task.cancel()
        planned, usual = [], b.sequencer._plan
        b.sequencer._plan = lambda items: planned.append(1) or usual(items)  # type: ignore[method-assign, func-returns-value]
        for k in range(3):  # b knows nothing of what a writes just before
            await a.rank(ask(f"a{k}", f"new {k}"))
            made = await b.rank(ask(f"b{k}", "ann"))
            assert made.state < b.bandit.events[f"b{k}"].position == b.bandit.position - 1
        await a.reward("a0", 1.0)
        assert await b.reward("known", 1.0) == "applied"
        assert len(planned) == 4
        # New users get the next number, and an erasure makes what was planned before it be planned again.
        await a.rank(ask("a3", "bob"))
        await b.rank(ask("b3", "carl"))
        assert await a.forget("ann")
        made = await b.rank(ask("b4", "ann"))
        assert made.user == b.bandit.names["ann"] == 6
        assert len(planned) == 4 + 2 + 2

    with_services(url, work, count=2)


def test_a_batch_waits_for_more_requests_only_where_other_services_write(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(services: list[Coordinator]) -> None:
        a, b = services
        await a.rank(ask("known", "ann"))
        for service in services:
            await service.news()
            for task in service._tasks:
                task.cancel()
        batches: list[int] = []
        b.sequencer.on_batch = lambda count, _: batches.append(count)
        monkeypatch.setattr(sequencer, "GATHER", 0.3)

        async def ask_twice(name: str) -> None:
            first = asyncio.create_task(b.rank(ask(f"{name} 1", "ann")))
            for _ in range(20):  # turns of the event loop
                await asyncio.sleep(0)
            await asyncio.gather(first, b.rank(ask(f"{name} 2", "ann")))

        await ask_twice("alone")
        await a.rank(ask("of another", "ann"))
        await b.rank(ask("after it", "ann"))
        await ask_twice("beside")
        assert batches == [1, 1, 1, 2]

    with_services(url, work, count=2)


def test_time_does_not_run_backwards_where_a_service_was_slow(url: str) -> None:
    async def work(services: list[Coordinator]) -> None:
        a, b = services
        await a.rank(ask("known", "ann"))
        await b.news()
        late = b.clock()
        b.clock = b.sequencer.clock = lambda: late  # type: ignore[assignment]
        a.clock.turn(5.0)  # type: ignore[attr-defined]
        await a.rank(ask("one", "ann"))
        await b.rank(ask("two", "ann"))
        events = b.bandit.events
        assert events["two"].at == events["one"].at == b.bandit.now == late + 5000

    with_services(url, work, count=2)


def test_a_batch_that_cannot_be_read_is_looked_at_again(url: str) -> None:
    async def work(services: list[Coordinator]) -> None:
        a, b = services
        await b.sequencer.follow()
        for task in b._tasks:
            task.cancel()
        end = b.bandit.position
        await a.rank(ask("one"))
        (good,) = a.store.tail(end)

        def write(checksum: int) -> None:  # whoever holds the lease
            with a.store._changing() as changes:
                changes.execute("UPDATE @log SET checksum = ? WHERE first = ?", (checksum, good.first))

        write(good.checksum + 1)
        with pytest.raises(FileError, match="damaged"):
            await b.sequencer.follow()
        with pytest.raises(Problem, match="cannot be read now"):
            await b.news()
        write(good.checksum)
        await b.sequencer.follow()
        assert b.bandit.events.keys() == {"one"}

    with_services(url, work, count=2)


def test_a_service_that_missed_records_which_were_removed_reads_the_state_again(url: str) -> None:
    async def work(services: list[Coordinator]) -> None:
        a, b = services
        for task in b._tasks:
            task.cancel()
        before = b.bandit
        await a.rank(ask("one"))
        await a.reward("one", 1.0)
        await a.delete_log()
        await a.rank(ask("two"))
        await b.rank(ask("three"))
        assert b.bandit is not before
        await a.sequencer.follow()
        assert snapshot.dump(a.bandit) == snapshot.dump(b.bandit)

    with_services(url, work, count=2, replay=False)


def test_a_log_that_became_shorter_ends_the_service(url: str) -> None:
    """A tool has cut it while the connection was lost: only a start finds out what the log says now."""

    async def work(services: list[Coordinator]) -> None:
        (one,) = services
        ended: list[bool] = []
        one.availability.give_up = lambda: ended.append(True)
        await one.rank(ask("one"))
        one.store.cut(one.bandit.position - 1)
        with pytest.raises(Problem, match="was not stored"):
            await one.rank(ask("two"))
        assert ended == [True]

    with_services(url, work, count=1, replay=False)


def test_other_rules_hold_for_all(url: str) -> None:
    async def work(services: list[Coordinator]) -> None:
        a, b, c = services
        for k in range(10):
            await a.rank(ask(f"e{k}", f"user-{k}"))
            await b.reward(f"e{k}", 1.0)
        await b.configure(Config(policy="linucb", wait=5.0))
        for service in (a, c):
            await service.sequencer.follow()
            assert service.bandit.config.policy == "linucb"
        await c.rank(ask("late", "ann"))
        a.clock.turn(5.0)  # type: ignore[attr-defined]
        assert await b.reward("late", 1.0) == "late"

    with_services(url, work)


@pytest.mark.parametrize("long", [False, True])
def test_while_another_policy_learns_a_long_log_requests_are_sent_to_the_service_that_has_learned_it(
    url: str, long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sequencer, "LONG_LOG", 10 if long else 1_000)
    learning, go_on = threading.Event(), threading.Event()

    async def work(services: list[Coordinator]) -> None:
        a, b = services
        for k in range(20):
            await a.rank(ask(f"e{k}", f"user-{k}"))
        await b.sequencer.follow()
        usual = b.bandit.relearn
        assert usual is not None

        def slow(config: Config) -> Bandit:
            learning.set()
            assert go_on.wait(30)
            return usual(config)

        b.bandit.relearn = slow
        await a.configure(Config(policy="linucb"))
        following = asyncio.create_task(b.sequencer.follow())
        assert await asyncio.to_thread(learning.wait, 30)
        asked = asyncio.create_task(b.rank(ask("at b")))
        await a.rank(ask("at a"))
        await asyncio.sleep(0)
        assert b.not_ready == (sequencer.LEARNING if long else None)
        go_on.set()
        await following
        assert b.not_ready is None
        if long:
            with pytest.raises(Problem, match="another policy learns the log"):
                await asked
            await b.rank(ask("at b"))
        else:
            await asked
        b.bandit.relearn = usual

    with_services(url, work, count=2)


def test_names_that_a_killed_service_left_are_removed_by_the_next_one(url: str) -> None:
    async def work(services: list[Coordinator]) -> None:
        (one,) = services
        for k in range(3):
            await one.rank(ask(f"event {k}", f"user {k}"))
        assert one.store.users().keys() == {0, 1, 2}  # with who made room for the last one
        next_one = Coordinator(one.settings, open_store(url, shared=True), one.clock)
        await next_one.start()
        await next_one.rank(ask("event 3", "user 2"))
        assert next_one.store.users() == {1: "user 1", 2: "user 2"} == next_one.bandit.ids
        await next_one.stop()

    with_services(url, work, count=1, max_users=2)


def test_who_cannot_read_what_others_wrote_is_told_to_try_again(url: str) -> None:
    """The log has moved on, and the store is away just then."""

    async def work(services: list[Coordinator]) -> None:
        a, b = services
        for task in b._tasks:
            task.cancel()
        await a.rank(ask("one"))
        usual, b.store.tail = b.store.tail, _away  # type: ignore[method-assign]
        with pytest.raises(Problem, match="not stored: the store takes no records for now") as caught:
            await b.rank(ask("two"))
        assert (caught.value.status, caught.value.retry_after) == (503, 1)
        b.store.tail = usual  # type: ignore[method-assign]
        while b.refusing is not None:
            await asyncio.sleep(0.01)
        await b.rank(ask("two"))

    with_services(url, work, count=2)


def _away(position: int, until: int = 0) -> list[Batch]:
    raise PassingError("away")
