"""R6: a full disk or a failed sync refuses new work with 503, loses nothing acknowledged, and reads go on."""

import asyncio
import resource
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
