"""A forgotten user leaves log, snapshots and free pages, also if the service dies at any point of it."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from coterie.data.logs.records import Activate, Rank, Reward, Tick, encode, flatten, pack
from coterie.data.logs.rules import Config
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.core.question import Action, Question
from coterie.service.log.erasure import Scrubber, scrub
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.log.store import Append, Store
from coterie.service.problems import Problem
from coterie.service.settings import Settings
from coterie.service.snapshots import snapshot
from coterie.service.snapshots.recovery import recover
from coterie.service.store_errors import StoreError
from tests.service.helpers import START, Clock, ask, bandit, decide, opened, settings_of, with_coordinator
from tests.service.log.test_store import Open, again, database  # noqa: F401 (fixtures)
from tests.service.snapshots.test_pieces import append

RULES = Config(wait=3600.0, aggregation="sum", parameters={"slots": 4096})
TRACES = (b"ann-event", b"ann@example.org", b"ann-the-person")


class Mortal:
    """A store that dies in its nth write: just before it, or just after."""

    WRITES = ("append", "rewrite", "save_pieces", "save_snapshot", "scrubbed", "_drop_pieces", "_empty_wal")

    def __init__(self, store: Any, last: int) -> None:
        self.store, self.left, self.dead = store, last, False
        for name in self.WRITES:
            if hasattr(store, name):
                setattr(store, name, self._mortal(name))

    def _mortal(self, name: str) -> Callable[..., Any]:
        write = getattr(self.store, name)

        def call(*arguments: Any, **more: Any) -> Any:
            self._live()
            found = write(*arguments, **more)
            self._live()
            return found

        return call

    def _live(self) -> None:
        self.left -= 1
        if self.left <= 0:
            self.dead = True
            raise StoreError("the process was killed")  # and every write after it


async def talk(coordinator: Any, number: int) -> None:
    """Ann asks and pays, before and after a snapshot, in batches of their own; so does somebody else."""
    for k in range(2):
        for user, event in (("ann-the-person", f"ann-event-{number}-{k}"), ("bob", f"bob-{number}-{k}")):
            actions = [Action(name, [{"size": 1}]) for name in "ab"]
            secret = [{"email": "ann@example.org"}] if user != "bob" else []
            await coordinator.rank(Question(event, user, actions, secret, deferred=k == 1))
            if k == 1:
                await coordinator.activate(event)
            await coordinator.reward(event, 0.25, "first")
        if k == 0:
            await coordinator.snapshot()
    for k in range(2):
        await coordinator.reward(f"ann-event-{number}-{k}", 0.5, "second")
        await coordinator.reward(f"bob-{number}-{k}", 0.5, "second")


def content(store: Store) -> bytes:
    """Return all that a store would give back."""
    rows = [batch.content() for batch in store.read()] + [row for _, row in store.snapshots()]
    rows += [store.piece(name) or b"" for name in store.pieces()]
    return b"".join(rows) + repr(store.users()).encode()


def test_a_crash_at_any_point_of_an_erasure_is_finished_by_the_next_start(again: Open) -> None:  # noqa: F811
    settings, clock = Settings(config=RULES), Clock()
    number = 0
    while True:
        number += 1
        store: Any = again()
        mortal: list[Mortal] = []

        async def erase(coordinator: Any, number: int = number, mortal: list[Mortal] = mortal) -> None:
            await talk(coordinator, number)
            await coordinator.snapshot()
            await coordinator.reward(
                f"ann-event-{number}-0", 0.125, "third"
            )  # of an event that the snapshot knows
            await coordinator.rank(ask(f"ann-event-{number}-last", "ann-the-person"))
            mortal.append(Mortal(coordinator.store, number))
            with suppress(Problem):  # the caller is told, or the process is gone
                await coordinator.forget("ann-the-person")

        asyncio.run(_and_die(settings, erase, clock, store))
        died = mortal[0].dead
        store = again()
        known = "ann-the-person" in store.users().values()
        if died:
            # Whatever was written, the log replays, from the snapshot and from the beginning.
            assert snapshot.dump(recover(store)) == snapshot.dump(recover(store, from_empty=True))

        async def start(coordinator: Any, known: bool = known) -> bytes:
            assert coordinator.store.scrubs() == []
            assert (
                await coordinator.forget("ann-the-person") == known
            )  # not stored, so not forgotten: asked again
            return snapshot.dump(coordinator.bandit)

        state = with_coordinator(settings, start, clock, store)
        store = again()
        assert snapshot.dump(recover(store)) == state
        assert snapshot.dump(recover(store, from_empty=True)) == state
        found = content(store)
        for trace in TRACES:
            assert trace not in found
        assert b"bob-" in found
        if isinstance(store, SqliteStore):
            path = store.path
            files = path.read_bytes() + Path(f"{path}-wal").read_bytes()
            for trace in TRACES:
                assert trace not in files
        if not died:
            break
    assert number > 15


async def _and_die(settings: Settings, work: Any, clock: Clock, store: Any) -> None:
    """Start a coordinator, let `work` use it, and stop without another word."""
    coordinator = Coordinator(settings, store, clock)
    await coordinator.start()
    await work(coordinator)
    for task in filter(None, [*coordinator._tasks, coordinator.availability.healing]):
        task.cancel()
    await coordinator.sequencer.close()


def test_a_killed_service_finishes_the_erasure_at_its_next_start(tmp_path: Path) -> None:
    """A real process, killed by itself when the new snapshot is there and half of the records are rewritten."""
    path = tmp_path / "log.db"
    program = f"""
import asyncio, os, signal
from coterie.service.coordination.coordinator import Coordinator
from coterie.data.logs.rules import Config
from coterie.service.settings import Settings
from coterie.service.log.sqlite_store import SqliteStore
from tests.service.helpers import Clock
from tests.service.log.test_erasure import RULES, talk

async def main():
    coordinator = Coordinator(Settings(config=RULES), SqliteStore({str(path)!r}), Clock())
    await coordinator.start()
    await talk(coordinator, 1)
    rewrite, left = coordinator.store.rewrite, [3]

    def kill(batch, renamed):
        rewrite(batch, renamed)
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    coordinator.store.rewrite = kill
    await coordinator.forget("ann-the-person")

asyncio.run(main())
"""
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=root, check=False, timeout=300
    )
    assert ended.returncode == -signal.SIGKILL
    with opened(path) as store:
        assert store.scrubs() == [0]
        assert b"ann-event" in content(store)
        assert snapshot.dump(recover(store)) == snapshot.dump(recover(store, from_empty=True))

    async def start(coordinator: Any) -> bytes:
        assert coordinator.store.scrubs() == []
        return snapshot.dump(coordinator.bandit)

    state = with_coordinator(settings_of(path, RULES), start, Clock())
    with opened(path) as store:
        assert snapshot.dump(recover(store, from_empty=True)) == state
    files = path.read_bytes() + b"".join(extra.read_bytes() for extra in tmp_path.glob("log.db-wal"))
    for trace in TRACES:
        assert trace not in files


def test_an_erasure_that_failed_is_finished_when_asked_again(tmp_path: Path) -> None:
    async def work(coordinator: Any) -> None:
        await talk(coordinator, 1)
        rewrite = coordinator.store.rewrite

        def fail(batch: Any, renamed: Any) -> None:
            raise StoreError("no room")

        coordinator.store.rewrite = fail
        with pytest.raises(Exception, match="but traces are left: the store failed; ask again"):
            await coordinator.forget("ann-the-person")
        coordinator.store.rewrite = rewrite
        assert coordinator.store.scrubs() == [0]
        assert not await coordinator.forget("ann-the-person")
        assert coordinator.store.scrubs() == []
        assert b"ann-event" not in content(coordinator.store)

    with_coordinator(settings_of(tmp_path / "log.db", RULES), work)


def test_an_id_that_somebody_else_used_again_stays(tmp_path: Path) -> None:
    made = bandit(max_event_bytes=1_000)
    for user in ("ann", "bob"):
        decide(made, ask("same", user))
        made.reward("same", 1.0, START)
        decide(made, ask(f"other-{user}", user))
    made.forget("ann", START)
    with opened(tmp_path / "log.db") as store:
        append(store, made)
        assert scrub(store, [0]) == 3
        store.scrubbed([0])
        records = [record for _, record in flatten(store.read())]
        named = [record.event for record in records if isinstance(record, Rank | Reward)]
        assert named[:3] == ["\x001", "\x001", "\x003"]
        assert named[3:] == ["same", "same", "other-bob"]
        assert recover(store).policies.learned == made.policies.learned == 2
        assert snapshot.dump(recover(store)) == snapshot.dump(recover(store, from_empty=True))
        assert scrub(store, [0]) == 0


def test_the_last_batches_are_rewritten_first(tmp_path: Path) -> None:
    """A reward keeps the name of its event no longer than the decision does, or it could never be found again."""
    made = bandit()
    with opened(tmp_path / "log.db") as store:
        for k in range(3):
            decide(made, ask(f"e{k}", deferred=True))
            append(store, made)
        for k in range(3):
            made.activate(f"e{k}", START)
            made.reward(f"e{k}", 1.0, START)
            append(store, made)
        made.forget("ann", START)
        append(store, made)
        order: list[int] = []
        rewrite = store.rewrite

        def noted(batch: Any, renamed: Any = None) -> None:
            order.append(batch.first)
            rewrite(batch, renamed)

        store.rewrite = noted  # type: ignore[method-assign]
        assert scrub(store, [0]) == 9
        assert order == sorted(order, reverse=True)
        assert len(order) == 6
        names = {r.event for _, r in flatten(store.read()) if isinstance(r, Rank | Reward | Activate)}
        assert all(name.startswith("\0") for name in names)


def test_a_scrubber_without_users_changes_nothing() -> None:
    made = bandit()
    record = decide(made, ask("e"))
    assert Scrubber([]).clean(1, record) is record


def test_others_commit_while_an_erasure_waits_for_a_reader(tmp_path: Path) -> None:
    """A backup reads for long, and the write-ahead log can be emptied only after it."""
    path = str(tmp_path / "log.db")
    with (
        closing(SqliteStore(path, shared=True)) as one,
        closing(SqliteStore(path, shared=True)) as two,
        ThreadPoolExecutor(1) as pool,
    ):
        one.append(Append(pack(0, [encode(Tick(0))])))
        with closing(SqliteStore(path, moment=True)) as reader:
            two.append(Append(pack(1, [encode(Tick(1))])))
            emptying = pool.submit(one.scrubbed, [])
            for first in range(2, 12):
                two.append(Append(pack(first, [encode(Tick(first))])))
            assert not emptying.done()
            assert reader.end() == 1
        emptying.result()
