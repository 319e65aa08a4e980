"""R6: a full disk or a failed sync refuses new work with 503, loses nothing acknowledged, and reads go on."""

import asyncio
import logging
import resource
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from litestar.testing import TestClient

from coterie.data.logs.records import Rank, flatten
from coterie.data.logs.rules import Config
from coterie.service import serve as serve_module
from coterie.service.app import _follow_keys
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.http.keys import Keyring
from coterie.service.log.postgres_store import PostgresStore
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.log.store import Append
from coterie.service.problems import Problem
from coterie.service.repeating import repeat
from coterie.service.serve import make_app
from coterie.service.settings import Settings
from coterie.service.snapshots import snapshot
from coterie.service.snapshots.recovery import recover
from coterie.service.store_errors import BrokenError, FullError, LostError
from tests.service import postgres
from tests.service.helpers import Clock, ask, opened
from tests.service.process import service


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a store refuses is not tried again for long."""
    monkeypatch.setattr("coterie.service.store_errors.PATIENCE", 0.1)


class Faulty:
    """A store whose next appends fail, or are kept and then reported as failed."""

    def __init__(self, inner: SqliteStore) -> None:
        self.inner = inner
        self.fault: Exception | None = None
        self.keeps = False  # a failed sync: the write may be there all the same
        self.tries = 0

    def append(self, appends: Append) -> int:
        self.tries += 1
        if self.fault is not None:
            if self.keeps:
                self.inner.append(appends)
            raise self.fault
        return self.inner.append(appends)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


async def _coordinator(path: Path) -> tuple[Coordinator, Faulty]:
    store: Any = Faulty(SqliteStore(str(path)))
    coordinator = Coordinator(Settings(config=Config(exploration=0.0)), store, Clock())
    coordinator.availability.pauses = (0.01, 0.02)
    await coordinator.start()
    return coordinator, store


async def _until(true: Callable[[], bool]) -> None:
    """Wait for something that must come."""
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.01)


async def _refused(work: Any, match: str) -> None:
    with pytest.raises(Problem, match=match) as caught:
        await work
    assert caught.value.status == 503


def test_a_full_disk_refuses_goes_back_to_the_log_and_recovers(tmp_path: Path) -> None:
    async def go() -> None:
        coordinator, store = await _coordinator(tmp_path / "log.db")
        await coordinator.rank(ask("e1"))
        await coordinator.reward("e1", 1.0)
        truth = snapshot.dump(coordinator.bandit)
        store.fault = FullError("no space left")
        results = await asyncio.gather(
            *(coordinator.rank(ask(f"lost-{k}")) for k in range(5)), return_exceptions=True
        )
        assert all(isinstance(result, Problem) and result.status == 503 for result in results)
        await _refused(coordinator.reward("e1", 1.0), "no new work is accepted")
        assert (await coordinator.event("e1")).state == "rewarded"  # reads go on
        await _until(
            lambda: snapshot.dump(coordinator.bandit) == truth
        )  # what was not stored was not learned
        store.fault = None
        await _until(lambda: coordinator.refusing is None)
        assert (await coordinator.rank(ask("lost-0"))).event == "lost-0"
        state = snapshot.dump(coordinator.bandit)
        await coordinator.stop()
        with opened(tmp_path / "log.db") as after:
            assert snapshot.dump(recover(after, from_empty=True)) == state

    asyncio.run(go())


@pytest.mark.parametrize("keeps", [False, True])
def test_a_failed_sync_is_never_tried_again(tmp_path: Path, keeps: bool) -> None:
    async def go() -> None:
        coordinator, store = await _coordinator(tmp_path / "log.db")
        ended: list[bool] = []
        coordinator.availability.give_up = lambda: ended.append(True)
        await coordinator.rank(ask("e1"))
        store.fault, store.keeps = BrokenError("sync failed"), keeps
        await _refused(coordinator.rank(ask("e2")), "not stored: a write to the store failed")
        store.fault, tries = None, store.tries
        for _ in range(3):
            await _refused(
                coordinator.rank(ask("e3")), "accepted now: a write to the store failed; the service ends"
            )
        assert (store.tries, ended) == (tries, [True])
        assert coordinator.availability.ending
        assert (await coordinator.event("e1")).state == "waiting"
        await coordinator.stop()
        again, _ = await _coordinator(tmp_path / "log.db")  # a restart reads what the disk holds
        assert ("e2" in again.bandit.events) == keeps
        assert "e1" in again.bandit.events
        await again.stop()

    asyncio.run(go())


def test_sqlite_itself_says_when_it_is_full_and_keeps_the_rest(tmp_path: Path) -> None:
    async def go() -> list[str]:
        store = SqliteStore(str(tmp_path / "log.db"))
        coordinator = Coordinator(Settings(), store, Clock())
        coordinator.availability.pauses = (0.01,)
        await coordinator.start()
        pages = store._write.execute("PRAGMA page_count").fetchone()[0]
        store._write.execute(f"PRAGMA max_page_count = {pages + 3}")
        acknowledged = []
        for k in range(200):
            try:
                await coordinator.rank(ask(f"e{k}"))
            except Problem as problem:
                assert "store is full" in problem.message  # noqa: PT017
                break
            acknowledged.append(f"e{k}")
        assert 0 < len(acknowledged) < 200
        assert coordinator.refusing == "the store is full"
        store._write.execute("PRAGMA max_page_count = 1000000")
        await _until(lambda: coordinator.refusing is None)
        await coordinator.rank(ask("after"))
        await coordinator.stop()
        return [*acknowledged, "after"]

    acknowledged = asyncio.run(go())
    with opened(tmp_path / "log.db") as store:
        ranks = [record.event for _, record in flatten(store.read()) if isinstance(record, Rank)]
    assert ranks == acknowledged


def test_a_file_that_another_process_locks_is_waited_for(tmp_path: Path) -> None:
    async def go() -> list[str]:
        store = SqliteStore(str(tmp_path / "log.db"))
        coordinator = Coordinator(Settings(), store, Clock())
        coordinator.availability.pauses = (0.01,)
        await coordinator.start()
        await coordinator.rank(ask("before"))
        store._write.execute("PRAGMA busy_timeout = 10")
        other = sqlite3.connect(store.path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        await _refused(coordinator.rank(ask("refused")), "not stored: the store takes no records for now")
        other.execute("ROLLBACK")
        other.close()
        await _until(lambda: coordinator.refusing is None)
        assert coordinator.bandit.events.keys() == {"before"}
        await coordinator.rank(ask("after"))
        await coordinator.stop()
        return _logged(tmp_path / "log.db")

    assert asyncio.run(go()) == ["before", "after"]


def test_a_disk_that_takes_no_more_bytes_gives_503_and_a_restart_has_everything(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    body = {"user": "ann", "actions": [{"id": f"item-{k}"} for k in range(40)]}
    acknowledged = []
    with service("--store", str(path)) as running:
        size = Path(f"{path}-wal").stat().st_size
        resource.prlimit(running.process.pid, resource.RLIMIT_FSIZE, (size + 60_000, resource.RLIM_INFINITY))
        with httpx.Client(base_url=running.url) as client:
            for k in range(300):
                answer = client.post("/v1/rank", json={**body, "eventId": f"e{k}"})
                if answer.status_code == 503:
                    assert answer.json()["error"]["code"] in ("not_stored", "not_accepting")
                    break
                assert answer.status_code == 201
                acknowledged.append(f"e{k}")
            assert 0 < len(acknowledged) < 300
        assert running.stop()[0] == 1  # nothing says that the limit passes
    with opened(path) as store:
        ranks = [record.event for _, record in flatten(store.read()) if isinstance(record, Rank)]
    assert ranks[: len(acknowledged)] == acknowledged


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that lets the system's own syncs and writes fail, compiled here."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to build the failing fsync with")
    library = tmp_path_factory.mktemp("shim") / "faults.so"
    source = Path(__file__).parents[1] / "faults.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    return library


def _failing(shim: Path, store: Path) -> tuple[dict[str, str], Path]:
    orders = store.with_name("orders")
    return {"LD_PRELOAD": str(shim), "FAULTS_STORE": str(store), "FAULTS_ORDERS": str(orders)}, orders


def _ranks(client: httpx.Client, names: Iterable[str]) -> Iterator[tuple[str, httpx.Response]]:
    for name in names:
        body = {"user": "ann", "actions": [{"id": "a"}, {"id": "b"}], "eventId": name}
        yield name, client.post("/v1/rank", json=body)


def _logged(path: Path) -> list[str]:
    with opened(path) as store:
        return [record.event for _, record in flatten(store.read()) if isinstance(record, Rank)]


@pytest.mark.parametrize(
    "durability", ["lose-nothing", pytest.param("lose-one-second", marks=pytest.mark.slow)]
)
def test_an_fsync_that_fails_once_is_not_trusted_again(tmp_path: Path, shim: Path, durability: str) -> None:
    path = tmp_path / "log.db"
    environment, orders = _failing(shim, path)
    options = ("--store", str(path), "--durability", durability)
    with service(*options, environment=environment) as running, httpx.Client(base_url=running.url) as client:
        acknowledged = []
        for name, answer in _ranks(client, (f"e{k}" for k in range(20))):
            assert answer.status_code == 201
            acknowledged.append(name)
        orders.write_text("sync")
        for name, answer in _ranks(client, (f"f{k}" for k in range(20_000))):
            if answer.status_code == 503:
                break
            assert durability == "lose-one-second", name  # which answers before the sync
            acknowledged.append(name)
        assert answer.status_code == 503
        assert not orders.exists()  # the next sync would succeed
        with suppress(httpx.TransportError):  # it ends, so that a supervisor can start it again
            for _, answer in _ranks(client, ("g0", "g1", "g2")):
                assert answer.status_code == 503
                assert answer.json()["error"]["code"] == "not_accepting"
            assert client.get("/readyz").status_code == 503
            assert client.get("/healthz").status_code == 503
        client.close()
        code, said = running.stop()
        assert (code, "the service ends" in said) == (1, True), said
    found = _logged(path)
    assert found[: len(acknowledged)] == acknowledged
    assert not {"g0", "g1", "g2"} & set(found)
    with service("--store", str(path)) as running, httpx.Client(base_url=running.url) as client:
        assert [answer.status_code for _, answer in _ranks(client, ("g0",))] == [
            201
        ]  # the disk was read anew


def test_a_disk_without_room_refuses_and_goes_on_when_there_is_room(tmp_path: Path, shim: Path) -> None:
    path = tmp_path / "log.db"
    environment, orders = _failing(shim, path)
    with service("--store", str(path), environment=environment) as running:
        client = httpx.Client(base_url=running.url)
        acknowledged = [name for name, answer in _ranks(client, ("e0", "e1")) if answer.status_code == 201]
        orders.write_text("full")
        for _, answer in _ranks(client, ("f0", "f1")):
            assert answer.status_code == 503
            assert "full" in answer.json()["error"]["message"]
        assert client.get("/v1/events/e0").status_code == 200
        orders.unlink()
        _until_ready(client)
        acknowledged += [name for name, answer in _ranks(client, ("h0",)) if answer.status_code == 201]
        client.close()
        assert running.stop()[0] == 0
    assert acknowledged == ["e0", "e1", "h0"]
    assert _logged(path) == acknowledged


def _until_ready(client: httpx.Client) -> None:
    end = time.monotonic() + 120
    while client.get("/readyz").status_code != 200:
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_file_system_of_one_megabyte_fills_up_and_nothing_is_lost(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("a small file system may not be mounted here")
    try:
        path = disk / "log.db"
        filler = disk / "filler"
        filler.write_bytes(b"x" * 400_000)
        acknowledged = []
        with service("--store", str(path)) as running:
            client = httpx.Client(base_url=running.url)
            for name, answer in _ranks(client, (f"e{k}" for k in range(3000))):
                if answer.status_code == 503:
                    break
                acknowledged.append(name)
            assert 0 < len(acknowledged) < 3000
            assert client.get("/v1/events/e0").status_code == 200
            filler.unlink()  # somebody made room
            _until_ready(client)
            acknowledged += [name for name, answer in _ranks(client, ("h0",)) if answer.status_code == 201]
            client.close()
            running.kill()
        assert acknowledged[-1] == "h0"
        found = _logged(path)
        assert [name for name in found if name in set(acknowledged)] == acknowledged
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_more_waiting_than_the_queue_takes_is_refused(tmp_path: Path) -> None:
    async def go() -> None:
        store = SqliteStore(str(tmp_path / "log.db"))
        coordinator = Coordinator(Settings(max_queue=3), store, Clock())
        await coordinator.start()
        results = await asyncio.gather(
            *(coordinator.rank(ask(f"e{k}")) for k in range(9)), return_exceptions=True
        )
        refused = [result for result in results if isinstance(result, Problem)]
        assert {problem.code for problem in refused} == {"overloaded"}
        assert 0 < len(refused) < 9
        await coordinator.stop()

    asyncio.run(go())


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the service logged; none of it has a traceback or a second line."""
    found = [record for record in caplog.records if record.name == "coterie.service"]
    for record in found:
        assert record.exc_info is None
        assert "\n" not in record.getMessage()
    return [record.getMessage() for record in found]


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """The service's log, even if another test has sent it to stderr."""
    logger = logging.getLogger("coterie.service")
    logger.propagate = True
    caplog.set_level(logging.INFO, "coterie.service")
    return caplog


def test_a_full_disk_writes_a_line_when_it_begins_and_when_it_ends(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    async def go() -> None:
        coordinator, store = await _coordinator(tmp_path / "log.db")
        store.fault = FullError("the store is full: database or disk is full")
        tries = store.tries
        await _refused(coordinator.rank(ask("e1")), "the request was not stored: the store is full")
        await _until(lambda: store.tries > tries + 3)
        store.fault = None
        await _until(lambda: coordinator.refusing is None)
        await coordinator.stop()
        assert coordinator.saved

    asyncio.run(go())
    assert lines(logged) == [
        "no new work is accepted: the store is full: database or disk is full",
        "the store takes records again, and new work is accepted",
    ]


def test_nobody_is_told_what_the_database_said(tmp_path: Path) -> None:
    store: Any = Faulty(SqliteStore(str(tmp_path / "log.db")))
    app: Any = make_app(Settings(store=str(tmp_path / "log.db")), store)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        store.fault = BrokenError("writing failed: host db.internal, user secret")
        body = {"user": "ann", "actions": [{"id": "a"}]}
        answers = [client.post("/v1/rank", json=body), client.post("/v1/rank", json=body)]
        answers += [client.get("/readyz"), client.get("/personalizer/v1.0/status")]
        assert [answer.status_code for answer in answers] == [503, 503, 503, 200]
        for answer in answers:
            assert "secret" not in answer.text
            assert "a write to the store failed" in answer.text


@pytest.mark.parametrize("fails", [False, True])
def test_a_stop_without_its_snapshot_says_so_and_exits_with_1(
    tmp_path: Path, fails: bool, monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise FullError("the store is full")

    def run(app: Any, **_: Any) -> None:
        """Start and stop, as uvicorn does."""

        async def go() -> None:
            coordinator: Coordinator = app.metrics.coordinator
            await coordinator.start()
            await coordinator.rank(ask("e1"))
            if fails:
                monkeypatch.setattr(coordinator.store, "save_snapshot", full)
            await coordinator.stop()

        asyncio.run(go())

    monkeypatch.setattr(
        "coterie.service.serve.Server",
        lambda config, _: SimpleNamespace(run=lambda _: run(config.app)),
    )
    monkeypatch.setattr(serve_module, "configure_logs", lambda level: None)
    monkeypatch.setattr(serve_module, "tune_garbage_collection", lambda: None)
    monkeypatch.setattr("coterie.service.serve.signal.signal", lambda *_: None)
    monkeypatch.setattr("coterie.service.serve.sys.setswitchinterval", lambda _: None)
    if fails:
        with pytest.raises(SystemExit) as ended:
            serve_module.serve(Settings(store=str(tmp_path / "log.db"), port=0))
        assert ended.value.code == 1
        assert lines(logged)[-1].startswith("no snapshot was written at the stop")
    else:
        serve_module.serve(Settings(store=str(tmp_path / "log.db"), port=0))
    assert _logged(tmp_path / "log.db") == ["e1"]


def _without_time(coordinator: Coordinator) -> tuple[Any, ...]:
    """What was decided and learned; the record that tries a store is only a time."""
    bandit = coordinator.bandit
    return sorted(bandit.events), bandit.statistics.total.learned, bandit.names


def test_a_restart_of_postgresql_is_survived(logged: pytest.LogCaptureFixture) -> None:
    """What was acknowledged is there, what was refused is not learned, and the log says it once."""

    async def go(server: postgres.Server) -> None:
        coordinator = Coordinator(
            Settings(config=Config(exploration=0.0)), PostgresStore(server.url), Clock()
        )
        coordinator.availability.pauses = (0.02, 0.04)
        await coordinator.start()
        keyring = Keyring([], [])
        following = asyncio.create_task(repeat(partial(_follow_keys, keyring, coordinator), 0.02, "keys"))
        for round_ in range(2):
            await coordinator.rank(ask(f"before {round_}"))
            await coordinator.reward(f"before {round_}", 1.0)
            truth = _without_time(coordinator)
            await asyncio.to_thread(server.stop)
            if round_ == 0:  # else nobody asks for anything, and the next look at the log finds out
                await _refused(coordinator.rank(ask("lost")), "the connection to the database is lost")
            await _until(lambda: coordinator.refusing == "the connection to the database is lost")
            await _refused(coordinator.rank(ask("refused")), "no new work is accepted now")
            assert (await coordinator.event("before 0")).state == "rewarded"  # reads go on
            await asyncio.to_thread(server.start)
            await _until(lambda: coordinator.refusing is None)
            assert _without_time(coordinator) == truth
            assert sum("no new work is accepted" in line for line in lines(logged)) == 1
            assert sum("trying again" in line for line in lines(logged)) <= 2
            logged.clear()
        record = await coordinator.rank(ask("lost"))
        assert await coordinator.rank(ask("lost")) == record
        following.cancel()
        state = snapshot.dump(coordinator.bandit)
        await coordinator.stop()
        assert coordinator.saved
        store = PostgresStore(server.url)
        assert snapshot.dump(recover(store, from_empty=True)) == state
        store.close()

    with postgres.controlled() as server:
        asyncio.run(go(server))


def test_a_batch_on_its_way_when_the_connection_is_lost_is_learned_once_or_not_at_all(tmp_path: Path) -> None:
    """The server may have kept it before it went: the log says, and then it is answered."""

    async def go(keeps: bool) -> None:
        path = tmp_path / f"{keeps}.db"
        coordinator, store = await _coordinator(path)
        store.fault, store.keeps = LostError("gone"), keeps
        if keeps:
            await coordinator.rank(ask("e1"))
        else:
            await _refused(coordinator.rank(ask("e1")), "the connection to the database is lost")
        store.fault = None
        await _until(lambda: coordinator.refusing is None)
        assert ("e1" in coordinator.bandit.events) == keeps
        await coordinator.rank(ask("e1"))
        await coordinator.reward("e1", 1.0)
        await coordinator.stop()
        assert _logged(path) == ["e1"]

    for keeps in (False, True):
        asyncio.run(go(keeps))
