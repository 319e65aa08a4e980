"""Two services on one database: one serves, the other waits and takes over, and two never write."""

import asyncio
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import httpx
import psycopg
import pytest
from litestar.testing import TestClient

from coterie.errors import ParameterError
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.coordination.standby import WAITING, Standby
from coterie.service.core.records import Batch, Rank, Record, Reward, Tick, encode, pack
from coterie.service.log.errors import PassingError, StaleError, keep_trying
from coterie.service.log.postgres_store import PostgresStore
from coterie.service.log.recovery import ScrubbedMeanwhileError, recover, relearn
from coterie.service.log.store import Append, KeyRow, Store, open_store
from coterie.service.problems import Problem
from coterie.service.serve import make_app
from coterie.service.settings import Config, Settings
from coterie.service.snapshots import snapshot
from tests.service import postgres
from tests.service.crash_press import CONNECTIONS, Facts, Sender
from tests.service.helpers import Clock, ask
from tests.service.log import test_crash as crash


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres.server() as url:
        yield url


@pytest.fixture
def database(server: str) -> str:
    """An empty database, without sessions that a test has left."""
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    return server


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.01)


async def _refused(work: Awaitable[Any], match: str) -> None:
    with pytest.raises(Problem, match=match) as caught:
        await work
    assert caught.value.status == 503


async def _coordinator(url: str) -> Coordinator:
    coordinator = Coordinator(
        Settings(config=Config(exploration=0.0)), open_store(url, standby=True), Clock()
    )
    coordinator.availability.pauses = (0.02, 0.04)
    await coordinator.start()
    return coordinator


def _abandon(coordinator: Coordinator) -> None:
    """End the tasks of a service whose store is closed."""
    assert coordinator.sequencer.committer is not None
    coordinator.sequencer.committer.abandon()
    for task in coordinator._tasks:
        task.cancel()


def _break_connections(store: Any, url: str) -> None:
    """End the sessions of a store on the server, as a network or a proxy may."""
    with psycopg.connect(url) as connection:
        for session in store._sessions.values():
            connection.execute("SELECT pg_terminate_backend(%s)", (session.info.backend_pid,))


def _own(store: Store) -> None:
    """Take a store whose owner is going: the server may need a moment to see it."""
    end = time.monotonic() + crash.PATIENCE
    while not _owned(store):
        assert time.monotonic() < end
        time.sleep(0.01)


def _owned(store: Store) -> bool:
    try:
        return store.own()
    except PassingError:  # the machine may be slow
        return False


def _ticks(first: int, count: int = 1) -> Append:
    return Append(pack(first, [encode(Tick(first + k)) for k in range(count)]))


def test_a_second_service_waits_and_takes_over_when_the_first_loses_its_connection(database: str) -> None:
    """The first one then waits, and gets its place back when the second ends."""

    async def go() -> None:
        first = await _coordinator(database)
        second = await _coordinator(database)
        assert (first.availability.waiting, first.refusing) == (False, None)
        assert (second.availability.waiting, second.refusing) == (True, WAITING)
        await _refused(second.rank(ask("early")), "waiting, because another coterie owns the database")
        for k in range(5):
            await first.rank(ask(f"first {k}", user=f"user {k}"))
        await first.reward("first 0", 1.0)
        truth = snapshot.dump(first.bandit)
        store: Any = first.store
        connect = store._session

        def later(name: str) -> Any:
            if second.availability.waiting:
                raise psycopg.OperationalError("the way to the server is broken")
            return connect(name)

        store._session = later
        _break_connections(first.store, database)
        await _until(lambda: second.refusing is None)  # nobody asked the first for anything
        assert snapshot.dump(second.bandit) == truth
        assert second.bandit.names == first.bandit.names
        await _until(lambda: first.availability.waiting)
        await _refused(first.rank(ask("late")), "waiting, because another coterie owns the database")
        record = await second.rank(ask("second", user="user 1"))
        assert record.user == 1
        await second.reward("first 1", 1.0)
        truth = snapshot.dump(second.bandit)
        await second.stop()
        assert second.saved
        await _until(lambda: first.refusing is None)
        assert snapshot.dump(first.bandit) == truth
        assert await first.rank(ask("second", user="user 1")) == record
        state = snapshot.dump(first.bandit)
        await first.stop()
        assert first.saved
        with closing(open_store(database)) as store:
            assert snapshot.dump(recover(store, from_empty=True)) == state

    asyncio.run(go())


def test_a_waiting_service_is_alive_not_ready_and_answers_nothing_else(database: str) -> None:
    owner = PostgresStore(database)
    store = open_store(database, standby=True)
    with TestClient(make_app(Settings(), store), base_url="http://127.0.0.1") as client:
        assert client.get("/healthz").status_code == 200
        told = client.get("/readyz")
        assert (told.status_code, told.json()) == (503, {"status": WAITING})
        assert "coterie_waiting 1.0" in client.get("/metrics").text
        body = {"user": "ann", "actions": [{"id": "a"}]}
        for answer in (
            client.post("/v1/rank", json=body),
            client.get("/v1/statistics"),
            client.get("/v1/events/some"),
        ):
            assert answer.status_code == 503
            assert answer.headers["retry-after"] == "1"
            assert answer.json()["error"]["code"] == "waiting"
        owner.close()
        end = time.monotonic() + crash.PATIENCE
        while client.get("/readyz").status_code != 200 and time.monotonic() < end:
            time.sleep(0.05)
        assert client.post("/v1/rank", json=body).status_code == 201
        assert "coterie_waiting 0.0" in client.get("/metrics").text


WRITES: dict[str, Callable[[PostgresStore], object]] = {
    "append": lambda store: store.append(_ticks(2)),
    "sync": lambda store: store.sync(),
    "save_pieces": lambda store: store.save_pieces({b"name": b"body"}),
    "save_snapshot": lambda store: store.save_snapshot(2, b"state"),
    "rewrite": lambda store: store.rewrite(_ticks(0, 2).batch),
    "cut": lambda store: store.cut(1),
    "compact": lambda store: store.compact(2),
    "scrubbed": lambda store: store.scrubbed([1]),
    "save_key": lambda store: store.save_key(KeyRow("k", ("decide",), b"hash", 0)),
    "drop_key": lambda store: store.drop_key("k"),
}


@pytest.mark.parametrize("name", WRITES)
def test_whoever_lost_the_lock_cannot_write(database: str, name: str) -> None:
    """Even with its session whole: a pooler between service and server may have given the lock away."""
    with closing(PostgresStore(database)) as first:
        first.append(_ticks(0, 2))
        first._lease.execute("SELECT pg_advisory_unlock_all()")
        with closing(PostgresStore(database)) as second:
            before = _content(database)
            with pytest.raises(StaleError, match=r"taken over by another|another process owns it"):
                WRITES[name](first)
            with pytest.raises(StaleError, match=r"taken over by another|another process owns it"):
                first.own()
            assert _content(database) == before
            assert second.own()
            WRITES[name](second)


def test_one_who_waits_cannot_write_either(database: str) -> None:
    with closing(PostgresStore(database)), closing(PostgresStore(database, standby=True)) as second:
        assert not second.own()
        with pytest.raises(StaleError):
            second.append(_ticks(0))
        assert second.bounds() == (0, 0)


def _content(database: str) -> list[Any]:
    tables = ("log", "head", "snapshots", "keys", "scrubs", "users")
    with psycopg.connect(database) as connection:
        found = [connection.execute(f"SELECT * FROM coterie_{table}").fetchall() for table in tables]
        found.append(connection.execute("SELECT to_regclass('coterie_pieces')").fetchall())
    return found


def test_a_takeover_waits_for_the_batch_that_is_being_kept(database: str) -> None:
    first = PostgresStore(database)
    second = PostgresStore(database, standby=True)
    taken = threading.Event()

    def take() -> None:
        _own(second)
        taken.set()

    other = threading.Thread(target=take)
    with psycopg.connect(database) as connection:  # as a session of the first that has not ended yet
        first._sessions["write"].close()
        first._sessions["write"] = connection  # type: ignore[assignment]
        first.append(_ticks(0, 7))
        first._lease.execute("SELECT pg_advisory_unlock_all()")
        other.start()
        with psycopg.connect(database, autocommit=True) as looking:
            waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            while looking.execute(waits).fetchone() == (0,):
                time.sleep(0.01)
        assert not taken.is_set()
        connection.commit()
        other.join()
    assert second.bounds() == (0, 7)
    first.close()
    second.close()


def test_what_was_on_its_way_cannot_be_kept_after_the_store_was_given_up(database: str) -> None:
    """A network may deliver it late. If nobody else came, the same process takes the store at once."""
    with closing(PostgresStore(database, standby=True)) as store:
        assert store.own()
        before = store.epoch()
        store.disown()
        with pytest.raises(StaleError, match="another process owns it"):
            store.append(_ticks(0))
        assert store.own()
        assert store._epoch == before + 1
        now, store._epoch = store._epoch, before
        with pytest.raises(StaleError, match="another process owns it"):
            store.append(_ticks(0))
        store._epoch = now
        store.append(_ticks(0))
        assert store.bounds() == (0, 1)


def test_the_server_notices_soon_that_an_owner_is_gone(database: str) -> None:
    """Its machine may have lost power, and nothing tells the server but the silence."""
    with closing(PostgresStore(database)) as store:
        for name, value in (
            ("tcp_keepalives_idle", "1"),
            ("tcp_keepalives_count", "2"),
            ("tcp_user_timeout", "3000"),
        ):
            assert store._write.execute(f"SHOW {name}").fetchone() == (value,)
        assert store._write.info.get_parameters()["keepalives_idle"] == "1"
    with closing(PostgresStore(f"{database}?keepalives_idle=7")) as store:
        assert store._write.info.get_parameters()["keepalives_idle"] == "7"  # what the URL says stays


def test_a_takeover_reads_only_what_was_not_followed(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> None:
        first = await _coordinator(database)
        await first.rank(ask("one"))
        standby = Standby(open_store(database, standby=True))
        assert not standby.store.own()
        standby.follow()
        await first.rank(ask("two", user="bob"))
        standby.follow()
        await first.rank(ask("three", user="cid"))
        truth = snapshot.dump(first.bandit)
        first.store.close()
        _own(standby.store)
        monkeypatch.setattr("coterie.service.coordination.standby.recover", None)  # which would read all
        bandit = standby.bandit()
        assert snapshot.dump(bandit) == truth
        assert bandit.names == first.bandit.names
        standby.store.close()
        _abandon(first)

    asyncio.run(go())


def test_names_are_followed_too(database: str) -> None:
    """With users who come, are forgotten, make room for others, and come back."""

    async def go() -> None:
        store = open_store(database, standby=True)
        first = Coordinator(Settings(config=Config(exploration=0.0, max_users=6)), store, Clock())
        await first.start()
        standby = Standby(open_store(database, standby=True))
        for k in range(24):
            await first.rank(ask(f"event {k}", user=f"user {k * 7 % 11}"))
            if k % 5 == 4:
                await first.forget(f"user {k * 7 % 11}")
            if k % 3 == 0:
                standby.follow()
        assert len(first.bandit.names) == 6
        await first.stop()
        _own(standby.store)
        bandit = standby.bandit()
        assert bandit.names == first.bandit.names
        assert bandit.ids == first.bandit.ids == standby.store.users()
        standby.store.close()

    asyncio.run(go())


@pytest.mark.parametrize("looks", [1, 2])
def test_a_user_may_be_scrubbed_between_two_looks(database: str, looks: int) -> None:
    """The standby knows the decision by its old name; its reward names the decision by its position."""

    async def go() -> None:
        first = await _coordinator(database)
        standby = Standby(open_store(database, standby=True))
        await first.rank(ask("before", user="ann"))
        standby.follow()
        await first.reward("before", 1.0)
        await first.forget("ann")
        await first.rank(ask("after", user="bob"))
        truth = snapshot.dump(first.bandit)
        if looks == 2:
            standby.follow()
            standby.follow()
        first.store.close()
        _own(standby.store)
        bandit = standby.bandit()
        assert bandit.statistics.total.learned == 1
        assert snapshot.dump(bandit) == truth == snapshot.dump(recover(standby.store, from_empty=True))
        standby.store.close()
        _abandon(first)

    asyncio.run(go())


def test_a_user_may_be_scrubbed_while_the_kept_log_is_learned_anew(database: str) -> None:
    """Rewards of decisions that retention removed are left out; those of a scrubbed one must not be."""
    kept: list[Record] = [
        Tick(1),
        Rank(2, "e", 0, ("a", "b"), (0, 1), 0, 0, 0, 1.0, 0.0, b""),
        Reward(3, "older", 1.0, "applied"),
        Reward(3, "\x000", 1.0, "applied"),
        Reward(3, "\x002", 1.0, "applied"),
    ]
    with closing(PostgresStore(database)) as store:
        store.append(_ticks(0))
        store.append(Append(pack(1, [encode(record) for record in kept])))
        store.compact(1)
        assert relearn(store, Config(), 6).policies.learned == 0
        assert relearn(store, Config(), 5, owned=False).policies.learned == 0
        with pytest.raises(ScrubbedMeanwhileError, match="record 5 is about an event of another name"):
            relearn(store, Config(), 6, owned=False)


def test_what_was_followed_is_read_again_after_another_owner(database: str) -> None:
    """That one may have cut the log, and grown it again."""
    first = PostgresStore(database)
    first.append(_ticks(0, 4))
    standby = Standby(open_store(database, standby=True))
    standby.follow()
    first.close()
    with closing(PostgresStore(database)) as tool:
        tool.cut(0)
        tool.append(Append(pack(0, [encode(Tick(100 + k)) for k in range(5)])))
        standby.follow()
    _own(standby.store)
    assert (standby.bandit().position, standby.bandit().now) == (5, 104)
    standby.store.close()
    standby = Standby(PostgresStore(database, standby=True))
    standby._epoch, standby._bandit = -1, recover(standby.store)  # not followed since before two owners
    standby._bandit.now = -1
    assert standby.bandit().now == 104
    standby.store.close()


def test_a_batch_that_cannot_be_read_while_waiting_is_looked_at_again(database: str) -> None:
    first = PostgresStore(database)
    first.append(_ticks(0, 2))
    good = next(first.read())
    first.rewrite(Batch(0, 2, good.body, good.checksum + 1, good.version))
    standby = Standby(open_store(database, standby=True))
    standby.follow()
    first.rewrite(good)
    standby.follow()
    first.close()
    _own(standby.store)
    assert standby.bandit().position == 2
    standby.store.close()


def test_a_takeover_that_fails_ends_the_process_so_that_another_can_begin(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def go() -> None:
        owner = PostgresStore(database)
        coordinator = Coordinator(Settings(), open_store(database, standby=True), Clock())
        ended: list[bool] = []
        coordinator.availability.give_up = lambda: ended.append(True)

        async def fail(*_: Any) -> None:
            raise ParameterError("the settings are wrong")

        monkeypatch.setattr(coordinator, "configure", fail)
        await coordinator.start()
        owner.close()
        await _until(lambda: bool(ended))
        assert coordinator.refusing == "the start failed"
        await coordinator.stop()

    asyncio.run(go())
    with closing(PostgresStore(database)) as store:
        assert store.own()


def test_one_who_waits_can_be_stopped_and_survives_a_restart_of_the_server() -> None:
    async def go(server: postgres.Server) -> None:
        first = await _coordinator(server.url)
        second = await _coordinator(server.url)
        await first.rank(ask("one"))
        await asyncio.to_thread(server.stop)
        await _refused(first.rank(ask("two")), "the connection to the database is lost")
        await asyncio.to_thread(server.start)
        await _until(lambda: None in (first.refusing, second.refusing))
        await _until(lambda: WAITING in (first.refusing, second.refusing))
        serving, other = (first, second) if first.refusing is None else (second, first)
        await serving.rank(ask("two"))
        assert {"one", "two"} == serving.bandit.events.keys()
        await other.stop()
        assert other.saved  # nothing is its to save
        await serving.stop()
        assert serving.saved

    with postgres.controlled() as server:
        asyncio.run(go(server))


def test_a_session_whose_transaction_could_not_be_ended_is_given_up(database: str) -> None:
    """A cancel may hit the end of a transaction that it has made fail."""
    with closing(PostgresStore(database)) as store:
        for write in (lambda: store.append(_ticks(0)), lambda: store.save_snapshot(1, b"state")):
            store._write.execute("BEGIN")
            with pytest.raises(psycopg.Error):
                store._write.execute("SELECT 1 / 0")
            keep_trying(write)
        assert store.bounds() == (0, 1)
        assert list(store.snapshots()) == [(1, b"state")]


def test_services_that_start_at_once_make_the_tables_once(database: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        stores = list(pool.map(lambda _: PostgresStore(database, standby=True), range(4)))
    try:
        assert [store.own() for store in stores].count(True) == 1
        assert [store.epoch() for store in stores] == [1] * 4
    finally:
        for store in stores:
            store.close()


class Pair:
    """Two services, of which one serves."""

    def __init__(self, start: crash.Start, store: str) -> None:
        self._start, self._store = start, store
        self._running: list[tuple[int, int]] = []  # port and process
        self.slowest = 0.0
        self.add()
        self.ready()
        self.add()

    def add(self) -> None:
        """Start one more."""
        port, child = self._start(self._store)
        crash._wait_for(port, child)
        self._running.append((port, child))

    def ready(self) -> tuple[int, int]:
        """Return port and process of the one that serves, as soon as one does."""
        begun = time.monotonic()
        while time.monotonic() < begun + crash.PATIENCE:
            states = [httpx.get(f"http://127.0.0.1:{port}/readyz") for port, _ in self._running]
            found = [
                pair for pair, told in zip(self._running, states, strict=True) if told.status_code == 200
            ]
            assert len(found) <= 1, "two services serve"
            assert all(told.json()["status"] in ("ready", WAITING, "starting") for told in states)
            if found:
                self.slowest = max(self.slowest, time.monotonic() - begun)
                return found[0]
            time.sleep(0.02)
        raise TimeoutError("nobody took over")

    def gone(self, pair: tuple[int, int]) -> None:
        """Note that one was killed."""
        self._running.remove(pair)


@pytest.mark.parametrize("takeovers", [2, pytest.param(50, marks=pytest.mark.slow)])
def test_takeovers_after_kills_under_load_lose_nothing_acknowledged(server: str, takeovers: int) -> None:
    """COTERIE_TAKEOVERS is how many there are instead of 50."""
    if takeovers == 50:
        takeovers = int(os.environ.get("COTERIE_TAKEOVERS", takeovers))
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE takeovers_{takeovers}")
    store = server.removesuffix("/postgres") + f"/takeovers_{takeovers}"
    rng, facts, slowest = random.Random(7), Facts(), []
    senders = [Sender(number, 7, facts, policies=True) for number in range(CONNECTIONS)]
    with crash.host() as start:
        pair = Pair(start, store)
        for _ in range(takeovers):
            serving = pair.ready()
            answers, delay = rng.randrange(1, 80), rng.uniform(0, 0.02)
            asyncio.run(crash._press_and_kill(*serving, senders, answers, delay))
            pair.gone(serving)
            pair.slowest = 0.0
            pair.ready()
            slowest.append(pair.slowest)
            pair.add()
        for _ in range(2):
            serving = pair.ready()
            asyncio.run(crash._press_and_kill(*serving, [], 0, 0.0))
            pair.gone(serving)
        crash._until_free(store)
        crash._check(store, facts)
    counts = Counter(facts.counts)
    median = sorted(slowest)[takeovers // 2]
    print(f"{takeovers} takeovers, median {median:.2f} s, slowest {max(slowest):.2f} s, {counts}")
    assert {"rank", "reward"} <= counts.keys()
    assert facts.again > 0
