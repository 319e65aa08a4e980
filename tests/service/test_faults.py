"""R6: a full disk or a failed sync refuses new work with 503, loses nothing acknowledged, and reads go on."""

import asyncio
import resource
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from coterie.service import snapshot
from coterie.service.desk import Desk
from coterie.service.problems import Problem
from coterie.service.records import Rank, flatten
from coterie.service.recovery import recover
from coterie.service.settings import Config, Settings
from coterie.service.sqlite_store import SqliteStore
from coterie.service.store import Append, BrokenError, FullError
from tests.service.helpers import Clock, ask, opened
from tests.service.process import service


class Faulty:
    """A store whose next appends fail, or are kept and then reported as failed."""

    def __init__(self, inner: SqliteStore) -> None:
        self.inner = inner
        self.fault: Exception | None = None
        self.keeps = False  # a failed sync: the write may be there all the same
        self.tries = 0

    def append(self, appends: Append) -> None:
        self.tries += 1
        if self.fault is not None:
            if self.keeps:
                self.inner.append(appends)
            raise self.fault
        self.inner.append(appends)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


async def _desk(path: Path) -> tuple[Desk, Faulty]:
    store = Faulty(SqliteStore(str(path)))
    desk = Desk(Settings(config=Config(exploration=0.0)), store, Clock())
    await desk.start()
    return desk, store


async def _refused(work: Any, match: str) -> None:
    with pytest.raises(Problem, match=match) as caught:
        await work
    assert caught.value.status == 503


def test_a_full_disk_refuses_goes_back_to_the_log_and_recovers(tmp_path: Path) -> None:
    async def go() -> None:
        desk, store = await _desk(tmp_path / "log.db")
        await desk.rank(ask("e1"))
        await desk.reward("e1", 1.0)
        truth = snapshot.dump(desk.engine)
        store.fault = FullError("no space left")
        results = await asyncio.gather(
            *(desk.rank(ask(f"lost-{k}")) for k in range(5)), return_exceptions=True
        )
        assert all(isinstance(result, Problem) and result.status == 503 for result in results)
        await _refused(desk.reward("e1", 1.0), "no new work is accepted")
        assert desk.event("e1").state == "rewarded"  # reads go on
        for _ in range(100):
            if snapshot.dump(desk.engine) == truth:
                break
            await asyncio.sleep(0.02)
        assert snapshot.dump(desk.engine) == truth  # what was not stored was not learned
        store.fault = None
        for _ in range(200):
            if desk.refusing is None:
                break
            await asyncio.sleep(0.02)
        assert (await desk.rank(ask("lost-0"))).event == "lost-0"
        state = snapshot.dump(desk.engine)
        await desk.stop()
        with opened(tmp_path / "log.db") as after:
            assert snapshot.dump(recover(after, from_empty=True)) == state

    asyncio.run(go())


@pytest.mark.parametrize("keeps", [False, True])
def test_a_failed_sync_is_never_tried_again(tmp_path: Path, keeps: bool) -> None:
    async def go() -> None:
        desk, store = await _desk(tmp_path / "log.db")
        await desk.rank(ask("e1"))
        store.fault, store.keeps = BrokenError("sync failed"), keeps
        await _refused(desk.rank(ask("e2")), "not stored: sync failed")
        store.fault, tries = None, store.tries
        await asyncio.sleep(1.3)
        for _ in range(3):
            await _refused(desk.rank(ask("e3")), "no new work is accepted now: sync failed")
        assert store.tries == tries
        assert desk.event("e1").state == "waiting"
        await desk.stop()
        again, _ = await _desk(tmp_path / "log.db")  # a restart reads what the disk holds
        assert ("e2" in again.engine.events) == keeps
        assert "e1" in again.engine.events
        await again.stop()

    asyncio.run(go())


def test_sqlite_itself_says_when_it_is_full_and_keeps_the_rest(tmp_path: Path) -> None:
    async def go() -> list[str]:
        store = SqliteStore(str(tmp_path / "log.db"))
        desk = Desk(Settings(), store, Clock())
        await desk.start()
        pages = store._write.execute("PRAGMA page_count").fetchone()[0]
        store._write.execute(f"PRAGMA max_page_count = {pages + 3}")
        acknowledged = []
        for k in range(200):
            try:
                await desk.rank(ask(f"e{k}"))
            except Problem as problem:
                assert "store is full" in problem.message  # noqa: PT017
                break
            acknowledged.append(f"e{k}")
        assert 0 < len(acknowledged) < 200
        await asyncio.sleep(0.2)
        store._write.execute("PRAGMA max_page_count = 1000000")
        await asyncio.sleep(1.5)
        await desk.rank(ask("after"))
        await desk.stop()
        return [*acknowledged, "after"]

    acknowledged = asyncio.run(go())
    with opened(tmp_path / "log.db") as store:
        ranks = [record.event for _, record in flatten(store.read()) if isinstance(record, Rank)]
    assert ranks == acknowledged


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
            assert client.get("/healthz").status_code == 200
            assert client.get("/readyz").status_code == 503
            assert client.get("/v1/events/e0").status_code == 200
        running.kill()
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
    source = Path(__file__).parent / "faults.c"
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


@pytest.mark.parametrize("durability", ["lose-nothing", "lose-one-second"])
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
        for name, answer in _ranks(client, (f"f{k}" for k in range(2000))):
            if answer.status_code == 503:
                break
            assert durability == "lose-one-second", name  # which answers before the sync
            acknowledged.append(name)
        assert answer.status_code == 503
        assert not orders.exists()  # the next sync would succeed
        time.sleep(1.2)
        for _, answer in _ranks(client, ("g0", "g1", "g2")):
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "not_accepting"
        assert client.get("/readyz").status_code == 503
        assert client.get("/healthz").status_code == 200
        assert client.get("/v1/events/e0").status_code == 200  # reads go on
        assert client.get("/v1/users/ann").status_code == 200
        running.kill()
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
    end = time.monotonic() + 20
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
        desk = Desk(Settings(max_queue=3), store, Clock())
        await desk.start()
        results = await asyncio.gather(*(desk.rank(ask(f"e{k}")) for k in range(9)), return_exceptions=True)
        refused = [result for result in results if isinstance(result, Problem)]
        assert {problem.code for problem in refused} == {"overloaded"}
        assert 0 < len(refused) < 9
        await desk.stop()

    asyncio.run(go())
