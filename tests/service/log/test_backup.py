"""Backups: of one moment while a service writes, whole or refused, and never over a store that is there."""

import asyncio
import json
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from coterie.cli.app import app
from coterie.data.logs.records import Rank, flatten
from coterie.data.logs.rules import Config
from coterie.errors import FileError
from coterie.service.backup import Made, back_up, restore
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.log.store import Append, KeyRow, Store, open_store
from coterie.service.snapshots import snapshot
from coterie.service.snapshots.recovery import recover
from coterie.service.snapshots.saving import save_now
from coterie.service.store_errors import InUseError
from tests.service import postgres
from tests.service.helpers import ask, bandit, settings_of, with_coordinator

KEY = KeyRow("phone", ("decide",), b"hash", 7)
KINDS = ["sqlite", "postgresql"]
Place = Callable[[str], str]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres.server() as url:
        yield url


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A function from a kind to an empty place for a store; PostgreSQL has one."""

    def new(kind: str) -> str:
        if kind == "sqlite":
            return str(tmp_path / f"store-{len(list(tmp_path.iterdir()))}.db")
        return postgres.emptied(request.getfixturevalue("server"))

    return new


def fill(store: Store, events: int = 12) -> None:
    """Let a store have decisions, rewards, a snapshot, a forgotten user, names and a key."""

    async def work(coordinator: Coordinator) -> None:
        for k in range(events):
            await coordinator.rank(ask(f"event {k}", user=f"user {k % 4} ü"))
            await coordinator.reward(f"event {k}", k / events)
            if k == events // 2:
                await coordinator.snapshot()
        await coordinator.forget("user 3 ü")
        await asyncio.to_thread(coordinator.store.save_key, KEY)
        await asyncio.to_thread(coordinator.store.save_evaluation, "one ü", b"kept")
        await coordinator.rank(ask("after", user="last"))

    with_coordinator(settings_of(Path("unused"), Config(exploration=0.0)), work, store=store)


def filled(url: str) -> str:
    fill(open_store(url))
    return url


def content(url: str) -> Any:
    """Return all that a store holds, as this coterie reads it."""
    with closing(open_store(url, create=False)) as store:
        return (
            [(batch.first, batch.count, batch.body) for batch in store.read()],
            store.users(),
            store.keys(),
            store.scrubs(),
            store.bounds(),
            store.evaluations(),
            list(store.snapshots()),
            {name: store.piece(name) for name in store.pieces()},
            snapshot.dump(recover(store)),
        )


def read_backup(path: Path) -> Made:
    """Return how a backup describes itself."""
    with closing(sqlite3.connect(path)) as connection:
        (about,) = connection.execute("SELECT about FROM backup").fetchone()
    return msgspec.json.decode(about, type=Made)


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_backup_of_either_kind_becomes_a_store_of_either_kind(
    place: Place, tmp_path: Path, kind: str, target: str
) -> None:
    source = filled(place(kind))
    held = content(source)
    made = back_up(source, tmp_path / "kept.backup")
    assert (made.first, made.end, made.users) == (0, held[4][1], len(held[1]))
    assert read_backup(tmp_path / "kept.backup") == made
    new = place(target)
    found = restore(tmp_path / "kept.backup", new)
    assert (found.end, found.same) == (made.end, True)
    assert content(new) == held
    if target == "sqlite":
        with closing(sqlite3.connect(new)) as connection:
            tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master").fetchall()}
        assert "backup" not in tables
    fill(open_store(new))  # and it goes on


@pytest.mark.parametrize("kind", KINDS)
def test_a_backup_is_of_one_moment_while_a_service_writes(place: Place, tmp_path: Path, kind: str) -> None:
    url = place(kind)

    async def work(coordinator: Coordinator) -> None:
        for k in range(30):
            await coordinator.rank(ask(f"before {k}", user=f"user {k}"))
        await coordinator.snapshot()
        copying = asyncio.create_task(asyncio.to_thread(back_up, url, tmp_path / "kept.backup"))
        during = 0
        while not copying.done() or during < 5:
            await coordinator.rank(ask(f"during {during}", user=f"later {during}"))
            during += 1
        made = await copying
        assert 30 <= made.end <= coordinator.bandit.position

    with_coordinator(settings_of(Path("unused"), Config(exploration=0.0)), work, store=open_store(url))
    new = str(tmp_path / "new.db")
    found = restore(tmp_path / "kept.backup", new)
    with closing(open_store(new)) as store:
        events = [record.event for _, record in flatten(store.read()) if isinstance(record, Rank)]
        names = store.users()
    assert events[:30] == [f"before {k}" for k in range(30)]
    assert events[30:] == [f"during {k}" for k in range(len(events) - 30)]
    assert len(names) == found.users == len(events)  # a name for everyone, and for nobody else


def test_files_are_private_and_nothing_is_left_beside_them(tmp_path: Path) -> None:
    source, kept, new = (tmp_path / name for name in ("store.db", "kept.backup", "new.db"))
    filled(str(source))
    back_up(str(source), kept)
    restore(kept, str(new))
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        "store.db",
        "store.db.lock",
        "store.db.maintenance",
        "kept.backup",
        "new.db",
        "new.db.lock",
    }
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in tmp_path.iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_there_stays_unless_one_says_otherwise(place: Place, tmp_path: Path, kind: str) -> None:
    kept = tmp_path / "kept.backup"
    other = filled(place("sqlite"))
    held = content(other)
    back_up(other, kept)
    bytes_ = kept.read_bytes()
    with pytest.raises(
        FileError, match=r"kept.backup is there already; choose another name, or say --replace"
    ):
        back_up(other, kept)
    assert kept.read_bytes() == bytes_
    assert back_up(other, kept, replace=True).end == held[4][1]
    target = place(kind)
    fill(open_store(target), events=3)
    before = content(target)
    with pytest.raises(FileError, match=r"already; choose another .*or say --replace"):
        restore(kept, target)
    assert content(target) == before
    restore(kept, target, replace=True)
    assert content(target) == held


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_that_is_served_is_not_replaced(place: Place, tmp_path: Path, kind: str) -> None:
    kept = tmp_path / "kept.backup"
    back_up(filled(place("sqlite")), kept)
    target = filled(place(kind))
    before = content(target)
    with closing(open_store(target)), pytest.raises(InUseError, match="in use by another"):
        restore(kept, target, replace=True)
    assert content(target) == before


def test_what_the_old_store_left_beside_its_file_is_not_read_with_the_new_one(tmp_path: Path) -> None:
    kept, target = tmp_path / "kept.backup", tmp_path / "new.db"
    held = content(filled(str(tmp_path / "store.db")))
    back_up(str(tmp_path / "store.db"), kept)
    store = SqliteStore(str(tmp_path / "old.db"))
    store.append(Append(next(_batches(tmp_path / "store.db"))))
    shutil.copy(tmp_path / "old.db", target)
    shutil.copy(tmp_path / "old.db-wal", f"{target}-wal")  # as a kill leaves it
    store.close()
    assert Path(f"{target}-wal").stat().st_size > 0
    restore(kept, str(target), replace=True)
    assert content(str(target)) == held


def _batches(path: Path) -> Iterator[Any]:
    with closing(open_store(str(path))) as store:
        yield from list(store.read())


def test_a_damaged_backup_is_refused_and_the_store_stays(tmp_path: Path) -> None:
    kept, damaged, target = (tmp_path / name for name in ("kept.backup", "damaged.backup", "new.db"))
    held = content(filled(str(tmp_path / "store.db")))
    back_up(str(tmp_path / "store.db"), kept)
    fill(SqliteStore(str(target)), events=2)
    before = target.read_bytes()
    whole = kept.read_bytes()
    refused = 0
    for place in range(11, len(whole), len(whole) // 40):
        damaged.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        try:
            restore(damaged, str(target), replace=True, replay=False)
        except FileError:
            refused += 1
            assert target.read_bytes() == before
        else:  # a byte that means nothing
            assert content(str(target)) == held
            target.write_bytes(before)
    assert refused >= 5
    for size in (0, 100, 5000, len(whole) - 4096):
        damaged.write_bytes(whole[:size])
        with pytest.raises(FileError):
            restore(damaged, str(target), replace=True)
    assert target.read_bytes() == before


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE keys SET scopes = 'admin'",
        "DELETE FROM users WHERE number = 0",
        "UPDATE head SET next = next + 1",
        "DELETE FROM snapshots",
        "INSERT INTO scrubs VALUES (5)",
    ],
)
def test_a_backup_that_somebody_changed_is_refused(tmp_path: Path, change: str) -> None:
    """No row has a checksum of its own that would show it."""
    kept = tmp_path / "kept.backup"
    back_up(filled(str(tmp_path / "store.db")), kept)
    with closing(sqlite3.connect(kept)) as connection:
        connection.execute(change)
        connection.commit()
    with pytest.raises(FileError, match="its rows do not give its SHA-256"):
        restore(kept, str(tmp_path / "new.db"))
    assert not (tmp_path / "new.db").exists()


def test_a_snapshot_that_is_not_what_the_log_says_is_refused(tmp_path: Path) -> None:
    kept, new = tmp_path / "kept.backup", str(tmp_path / "new.db")
    filled(str(tmp_path / "store.db"))
    with closing(SqliteStore(str(tmp_path / "store.db"))) as store:
        other = bandit(exploration=0.0)
        other.position = store.bounds()[1]
        save_now(other, store, alone=True)
    back_up(str(tmp_path / "store.db"), kept)
    with pytest.raises(FileError, match=r"the snapshot in .*kept.backup is not what its log says"):
        restore(kept, new)
    assert not Path(new).exists()
    assert restore(kept, new, replay=False).same is None


def test_what_is_no_store_or_no_backup_is_refused(tmp_path: Path) -> None:
    store = filled(str(tmp_path / "store.db"))
    with pytest.raises(FileError, match="there is no store at"):
        back_up(str(tmp_path / "typo.db"), tmp_path / "kept.backup")
    (tmp_path / "text").write_text("no database" * 1000)
    with pytest.raises(FileError, match="cannot be copied"):
        back_up(str(tmp_path / "text"), tmp_path / "kept.backup")
    with pytest.raises(FileError, match="there is no folder"):
        back_up(store, tmp_path / "nowhere" / "kept.backup")
    assert not list(tmp_path.glob("kept*"))
    for path, match in (
        (Path(store), "was not written by `coterie backup`"),
        (tmp_path / "gone", "no backup at"),
    ):
        with pytest.raises(FileError, match=match):
            restore(path, str(tmp_path / "new.db"))
    assert not list(tmp_path.glob("new*"))
    assert not list(tmp_path.glob("typo*"))


def test_a_database_that_cannot_be_reached_is_told_without_its_password(tmp_path: Path) -> None:
    url = "postgresql://ann:secret@127.0.0.1:1/none"
    back_up(filled(str(tmp_path / "store.db")), tmp_path / "kept.backup")
    works: list[Callable[[], object]] = [
        lambda: back_up(url, tmp_path / "other.backup"),
        lambda: restore(tmp_path / "kept.backup", url),
    ]
    for work in works:
        with pytest.raises(FileError, match="the database cannot be read") as caught:
            work()
        assert "secret" not in str(caught.value)
    assert not list(tmp_path.glob("other*"))


def test_damage_that_a_snapshot_covers_is_left_out_of_a_backup_and_said(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    filled(str(store))
    with closing(sqlite3.connect(store)) as connection:
        connection.execute("UPDATE log SET body = zeroblob(length(body)) WHERE first = 3")
        connection.commit()
    assert back_up(str(store), tmp_path / "kept.backup").dropped == 1


def test_the_commands_say_what_was_copied(tmp_path: Path) -> None:
    store, kept, new = (str(tmp_path / name) for name in ("store.db", "kept.backup", "new.db"))
    filled(store)
    said = CliRunner().invoke(app, ["backup", kept, "--store", store, "--json"])
    assert said.exit_code == 0, said.output
    told = json.loads(said.stdout)
    assert told["sha256"] == read_backup(Path(kept)).sha256
    said = CliRunner().invoke(app, ["restore", kept, "--store", new])
    assert said.stdout == f"{told['end']} records from 0 to {told['end']}, {told['users']} users, no damage\n"
    said = CliRunner().invoke(app, ["backup", kept, "--store", new, "--replace"])
    assert said.stdout == f"{told['end']} records from 0 to {told['end']}, {told['users']} users, in {kept}\n"
    said = CliRunner().invoke(app, ["restore", kept, "--store", new, "--replace", "--quick", "--json"])
    assert json.loads(said.stdout)["same"] is None
