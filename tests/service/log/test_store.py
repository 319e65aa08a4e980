"""Both stores keep the same promises: what was appended is there, in order, and nothing else."""

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from coterie.data.logs import records
from coterie.data.logs.records import Rank, Tick, encode, flatten, pack
from coterie.data.logs.rules import Challenger, Config
from coterie.errors import FileError
from coterie.policies.base.vowpal_options import is_installed
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.http.keys import new_key
from coterie.service.log.retention import remove_old
from coterie.service.log.sqlite_store import SqliteStore, _named
from coterie.service.log.store import Append, Store, open_store
from coterie.service.settings import Durability, Settings
from coterie.service.snapshots import snapshot
from coterie.service.snapshots.recovery import recover
from coterie.service.store_errors import (
    BrokenError,
    FullError,
    InUseError,
    PassingError,
    StaleError,
    StoreError,
)
from tests.service import postgres
from tests.service.helpers import START, Clock, ask, with_coordinator

Open = Callable[[], Store]


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    with postgres.server() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def again(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """A function that opens the same empty store each time; the one before is closed first."""
    url = str(tmp_path / "log.db")
    if request.param == "postgresql":
        url = postgres.emptied(request.getfixturevalue("database"))
    opened: list[Store] = []

    def go() -> Store:
        for store in opened:
            store.close()
        opened[:] = [open_store(url)]
        return opened[0]

    yield go
    for store in opened:
        store.close()


def _ticks(first: int, count: int, at: int = 0) -> Append:
    return Append(pack(first, [encode(Tick(at + first + k)) for k in range(count)]))


def test_sqlite_syncs_through_the_drives_cache_where_a_plain_sync_does_not(tmp_path: Path) -> None:
    with closing(SqliteStore(str(tmp_path / "log.db"))) as store:
        for pragma in ("fullfsync", "checkpoint_fullfsync"):
            assert store._write.execute(f"PRAGMA {pragma}").fetchone() == (1,)


VOWPAL = {"arguments": "--cb_explore_adf --quadratic GT --ignore A --epsilon 0.2 --cb_type mtr -b 18"}
NEEDS_VW = pytest.mark.skipif(not is_installed(), reason="vowpalwabbit is not installed")


@pytest.mark.parametrize(
    "challenger",
    [Challenger("linucb", 0.4), pytest.param(Challenger("vw", 0.4, VOWPAL), marks=NEEDS_VW)],
    ids=["linucb", "vw"],
)
def test_a_trial_with_a_challenger_replays_bit_for_bit(again: Open, challenger: Challenger) -> None:
    """Once from the snapshot and the log after it, once from the whole log."""
    states: list[bytes] = []

    async def work(coordinator: Coordinator) -> None:
        for k in range(30):
            record = await coordinator.rank(ask(f"e{k}", f"user-{k % 7}"))
            await coordinator.reward(f"e{k}", float(record.choice == 1))
            if k == 20:
                await coordinator.snapshot()
        states.append(snapshot.dump(coordinator.bandit))
        states.append(snapshot.dump(recover(coordinator.store)))
        states.append(snapshot.dump(recover(coordinator.store, from_empty=True)))
        assert coordinator.bandit.challenger is not None
        assert coordinator.bandit.challenger.learned > 5
        assert coordinator.bandit.trial is not None

    config = Config(holdback=0.2, challenger=challenger)
    with_coordinator(Settings(config=config), work, Clock(), again())
    assert states[0] == states[1] == states[2]


def test_what_was_appended_is_read_from_any_place(again: Open) -> None:
    store = again()
    for first, count in ((0, 2), (2, 1), (3, 200)):
        store.append(_ticks(first, count))
    store = again()
    assert store.bounds() == (0, 203)
    assert [position for position, _ in flatten(store.read())] == list(range(203))
    assert [batch.first for batch in store.read(2)] == [2, 3]
    assert [batch.first for batch in store.read(100)] == [3]
    assert list(store.read(203)) in ([], list(store.read(3)))


def test_a_batch_that_does_not_follow_is_refused_and_nothing_kept(again: Open) -> None:
    store = again()
    store.append(_ticks(0, 2))
    with pytest.raises(StaleError, match="does not end at 5"):
        store.append(_ticks(5, 1))
    with pytest.raises(StaleError, match="does not end at 0"):
        store.append(_ticks(0, 1))
    assert store.bounds() == (0, 2)


def test_a_batch_that_is_appended_again_is_kept_once(again: Open) -> None:
    """After a try whose outcome is not known; one with other records at its place is refused."""
    store = again()
    store.append(_ticks(0, 2))
    batch = pack(2, [encode(Tick(9))])
    for _ in range(3):
        store.append(Append(batch, {0: "ann"}, (), (7,)))
        store._unsure = batch
    with pytest.raises(StaleError, match="does not end at 2"):
        store.append(Append(pack(2, [encode(Tick(10))])))
    assert [record.at for _, record in flatten(store.read())] == [0, 1, 9]
    assert (store.bounds(), store.users(), store.scrubs()) == ((0, 3), {0: "ann"}, [7])


def test_names_come_and_go_with_their_records(again: Open) -> None:
    store = again()
    batch = _ticks(0, 1).batch
    store.append(Append(batch, {0: "ann", 1: "b\0b", 2: "ü🙂"}))
    assert store.users() == {0: "ann", 1: "b\0b", 2: "ü🙂"}
    store.append(Append(_ticks(1, 1).batch, {}, [1], [1]))
    store = again()
    assert store.users() == {0: "ann", 2: "ü🙂"}
    assert store.scrubs() == [1]
    store.scrubbed([1])
    assert store.scrubs() == []


def test_two_snapshots_are_kept_and_old_batches_go(again: Open) -> None:
    store = again()
    for first in range(0, 10, 2):
        store.append(_ticks(first, 2))
    for position in (2, 4, 8):
        store.save_snapshot(position, b"state %d" % position)
    assert list(store.snapshots()) == [(8, b"state 8"), (4, b"state 4")]
    remove_old(store, before=1000)
    assert store.bounds() == (4, 10)
    remove_old(store, before=0)
    assert store.bounds() == (4, 10)
    store.save_snapshot(9, b"alone", alone=True)
    assert list(store.snapshots()) == [(9, b"alone")]
    assert store.cut(6) == 4
    assert store.bounds() == (4, 6)
    assert list(store.snapshots()) == []


def test_keys_are_kept_as_hashes(again: Open) -> None:
    store = again()
    key, row = new_key("app", ["read", "decide"])
    store.save_key(row)
    store = again()
    assert store.keys() == [row]
    assert key.encode() not in row.hash
    assert store.drop_key("app")
    assert not store.drop_key("app")


def test_a_coordinator_goes_on_where_it_stopped(again: Open) -> None:
    settings = Settings(config=Config(exploration=0.3, wait=5.0))
    clock = Clock()

    async def work(coordinator: Any) -> bytes:
        start = coordinator.bandit.position
        for k in range(20):
            await coordinator.rank(ask(f"e{start}-{k}", f"user-{k % 4}"))
            if k % 2:
                await coordinator.reward(f"e{start}-{k}", 1.0)
            clock.turn(0.5)
        await coordinator.forget("user-3")
        return snapshot.dump(coordinator.bandit)

    for _ in range(2):
        state = with_coordinator(settings, work, clock, again())
        store = again()
        assert snapshot.dump(recover(store)) == state
        assert snapshot.dump(recover(store, from_empty=True)) == state


def test_a_forgotten_user_leaves_the_log_and_it_still_replays(again: Open) -> None:
    settings = Settings(config=Config(dimensions=4))
    secret = {"email": "ann@example.org"}

    async def work(coordinator: Any) -> bytes:
        from coterie.service.core.question import Action, Question

        for k in range(6):
            user = "ann-the-person" if k % 2 else f"other-{k}"
            actions = [Action(name, [{"size": 1}]) for name in "ab"]
            await coordinator.rank(Question(f"ann-event-{k}", user, actions, [secret] if k % 2 else []))
            await coordinator.reward(f"ann-event-{k}", 1.0)
        await coordinator.forget("ann-the-person")
        return snapshot.dump(coordinator.bandit)

    state = with_coordinator(settings, work, Clock(), again())
    store = again()
    assert snapshot.dump(recover(store, from_empty=True)) == state
    whole = b"".join(batch.body for batch in store.read()) + b"".join(data for _, data in store.snapshots())
    whole += b"".join(store.piece(name) or b"" for name in store.pieces())
    for trace in (b"ann@example.org", b"ann-the-person", b"ann-event-1", b"ann-event-3"):
        assert trace not in whole
    assert b"ann-event-2" in whole
    ranks = [record for _, record in flatten(store.read()) if isinstance(record, Rank)]
    assert [rank.features is None for rank in ranks] == [False, True] * 3
    if isinstance(store, SqliteStore):
        path = store.path
        store = again()
        data = path.read_bytes() + Path(f"{path}-wal").read_bytes()
        assert b"ann@example.org" not in data
        assert b"ann-the-person" not in data


def test_two_processes_cannot_own_one_file(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "log.db"))
    with pytest.raises(FileError, match="in use by another process"):
        SqliteStore(str(tmp_path / "log.db"))
    store.close()


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_another_name_of_a_file_does_not_open_it_twice(tmp_path: Path, link: Callable[..., None]) -> None:
    """Neither in this process nor in another one, and an attempt in vain leaves SQLite's own locks alone."""
    path, other = tmp_path / "log.db", tmp_path / "folder" / "other.db"
    other.parent.mkdir()
    store = SqliteStore(str(path))
    link(other, path)
    code = f"from coterie.service.log.sqlite_store import SqliteStore; SqliteStore({str(other)!r})"
    for _ in range(2):
        with pytest.raises(InUseError, match="in use by another process"):
            SqliteStore(str(other))
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "InUseError" in told.stderr
    held = Path("/proc/locks").read_text()
    if held:  # Linux: SQLite holds its file while it is open
        assert f":{path.stat().st_ino} " in "".join(line for line in held.splitlines(True) if "POSIX" in line)
    store.append(_ticks(0, 3))
    store.close()
    again = SqliteStore(str(other))
    assert again.bounds() == (0, 3)
    again.close()


def test_the_place_of_an_open_file_is_not_free_for_another_file(tmp_path: Path) -> None:
    """Its write-ahead log is still there."""
    path = tmp_path / "log.db"
    SqliteStore(str(tmp_path / "backup.db")).close()
    store = SqliteStore(str(path))
    (tmp_path / "backup.db").rename(path)
    with pytest.raises(InUseError):
        SqliteStore(str(path))
    store.close()


def test_a_store_that_is_not_there_is_not_made_where_one_must_be(database: str, tmp_path: Path) -> None:
    for url in (str(tmp_path / "typo.db"), f"sqlite://{tmp_path}/typo.db"):
        with pytest.raises(FileError, match=r"there is no store at .*typo.db; name the file"):
            open_store(url, create=False)
    (tmp_path / "empty.db").touch()
    with pytest.raises(FileError, match="there is no store at"):
        open_store(str(tmp_path / "empty.db"), create=False)
    assert sorted(file.name for file in tmp_path.glob("typo*")) == []
    assert (tmp_path / "empty.db").stat().st_size <= 4096  # SQLite's own header, but no table
    with psycopg.connect(postgres.emptied(database), autocommit=True) as connection:
        with pytest.raises(FileError, match="there is no store in the database"):
            open_store(database, create=False)
        assert connection.execute("SELECT to_regclass('coterie_version')").fetchone() == (None,)


def test_two_processes_cannot_own_one_database(database: str) -> None:
    store = open_store(database)
    with pytest.raises(FileError, match="in use by another coterie"):
        open_store(database)
    store.close()


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    path.write_bytes(b"hello" * 1000)
    with pytest.raises(FileError, match="cannot be opened as a coterie store"):
        SqliteStore(str(path))
    path.unlink()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE mine (x)")
    other.close()
    with pytest.raises(FileError, match="a database of something else"):
        SqliteStore(str(path))


def test_a_store_of_another_version_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    SqliteStore(str(path)).close()
    other = sqlite3.connect(path)
    other.execute("PRAGMA user_version = 99")
    other.close()
    with pytest.raises(FileError, match="store version 99, this coterie reads version 4"):
        SqliteStore(str(path))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_FULL, FullError),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, PassingError),
        (sqlite3.SQLITE_LOCKED, PassingError),
        (sqlite3.SQLITE_IOERR_FSYNC, BrokenError),
        (sqlite3.SQLITE_READONLY, BrokenError),
    ],
)
def test_only_a_full_disk_and_a_lock_may_be_tried_again(code: int, kind: type[StoreError]) -> None:
    error = sqlite3.OperationalError("error")
    error.sqlite_errorcode = code
    assert type(_named(error)) is kind


def test_the_second_level_syncs_later_and_loses_nothing_to_a_crash(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "log.db"), durability=Durability.LOSE_ONE_SECOND)
    store.append(_ticks(0, 3, START))
    store.sync()
    assert store.bounds() == (0, 3)
    store.close()


def test_old_batches_go_while_new_ones_come(again: Open) -> None:
    store = again()
    for k in range(150):
        store.append(_ticks(400 * k, 400))
    trouble: list[Exception] = []

    def let_old_go() -> None:
        try:
            for k in (50, 100, 150):
                store.compact(400 * k)
        except Exception as error:
            trouble.append(error)

    thread = threading.Thread(target=let_old_go)
    thread.start()
    end = 400 * 150
    while thread.is_alive():
        store.append(_ticks(end, 2))
        end += 2
    thread.join()
    assert trouble == []
    assert store.bounds() == (400 * 150, end)


def test_a_reader_goes_on_where_old_batches_were_removed_under_it(again: Open) -> None:
    """Readers take pages of 64 batches; what is removed between two pages is passed over, not called damage."""
    store = again()
    for first in range(200):
        store.append(_ticks(first, 1))
    reader = store.read()
    seen = [next(reader).first]
    store.compact(150)
    seen += [batch.first for batch in reader]
    assert seen == [*range(64), *range(150, 200)]
    reader = store.read()
    seen = [next(reader).first]
    for first in range(200, 300):
        store.append(_ticks(first, 1))
    store.compact(300)  # nothing is left
    assert [*seen, *(batch.first for batch in reader)] == [*range(150, 200)]
    assert list(store.read()) == []


def test_what_goes_leaves_the_file_and_commits_are_kept_out_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "LEVEL", 0)
    store = SqliteStore(str(tmp_path / "log.db"))
    for k in range(900):
        store.append(_ticks(400 * k, 400))
    store.scrubbed([0])  # empties the write-ahead log
    before = (tmp_path / "log.db").stat().st_size
    held: list[bool] = []
    inner = store._write

    class Watched:
        def executescript(self, text: str) -> None:
            held.append(store._lock.locked())
            inner.executescript(text)

        def __getattr__(self, name: str) -> Any:
            return getattr(inner, name)

    store._write = Watched()  # type: ignore[assignment]
    store.compact(400 * 890)
    assert len(held) > 2
    assert all(held)
    assert store._rows("PRAGMA freelist_count") == [(0,)]
    store.append(_ticks(400 * 900, 1))
    store.close()
    assert (tmp_path / "log.db").stat().st_size < before / 10
