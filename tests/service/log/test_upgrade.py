"""A store of every earlier version becomes one of the newest, and says the same."""

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from coterie.cli.app import app
from coterie.errors import FileError
from coterie.service.log import sqlite_store
from coterie.service.log import store as any_store
from coterie.service.log import upgrade as upgrading
from coterie.service.log.backup import back_up, restore
from coterie.service.log.recovery import recover
from coterie.service.log.store import Store, open_store
from coterie.service.log.upgrade import upgrade
from coterie.service.snapshots import pieces, snapshot
from tests.service import older, postgres
from tests.service.golden import FOLDER

VERSIONS = {"v1": 1, "v2": 2, "v3": 3, "v4": 3}


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres.server() as url:
        yield url


def golden(version: str, folder: Path) -> str:
    """Return a copy of the store that coterie of that version wrote."""
    path = folder / "store.db"
    shutil.copy(FOLDER / version / "store.db", path)
    if version == "v2":  # whose golden store is too small to be cut into pieces
        with closing(sqlite_store.SqliteStore(str(path))) as store:
            older.save_pieces(store, recover(store))
    return str(path)


def to_postgres(path: str, url: str, folder: Path) -> str:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    back_up(path, folder / "kept.backup")
    restore(folder / "kept.backup", url, replay=False)
    return url


def said(store: Store) -> Any:
    return (
        snapshot.dump(recover(store)),
        [(batch.first, batch.body) for batch in store.read()],
        store.users(),
        store.keys(),
        store.bounds(),
    )


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_store_of_each_version_is_upgraded(
    version: str, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = golden(version, tmp_path)
    if kind == "postgresql":
        url = to_postgres(url, request.getfixturevalue("server"), tmp_path)
    with closing(open_store(url)) as store:
        assert store.version() == VERSIONS[version]
        before = said(store)
        found = upgrade(store)
        assert (found.before, found.now) == (VERSIONS[version], 3)
        assert found.records == before[4][1]
        assert found.users == len(before[2])
        assert next(store.snapshots())[1].startswith(pieces.PARTS)
        assert said(store) == before
    with closing(open_store(url)) as store:
        assert said(store) == before
        assert upgrade(store).before == 3


def test_every_version_that_is_read_has_a_golden_store() -> None:
    assert set(VERSIONS.values()) == set(any_store.READ)
    assert max(any_store.READ) == any_store.VERSION
    assert {path.name for path in FOLDER.iterdir()} == VERSIONS.keys()


def test_a_store_that_cannot_be_read_is_left_as_it_is(tmp_path: Path) -> None:
    url = golden("v1", tmp_path)
    with closing(open_store(url)) as store:
        store._write.execute("UPDATE log SET body = zeroblob(10)")  # type: ignore[attr-defined]
        store._write.execute("DELETE FROM snapshots")  # type: ignore[attr-defined]
    with closing(open_store(url)) as store:
        with pytest.raises(FileError, match="are damaged"):
            upgrade(store)
        assert (store.version(), store.positions(), store.pieces()) == (1, [], set())


def test_an_upgrade_that_reads_back_otherwise_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrading, "save_now", lambda bandit, store: None)
    with (
        closing(open_store(golden("v1", tmp_path))) as store,
        pytest.raises(FileError, match="does not read back as it was"),
    ):
        upgrade(store)


def test_the_command_asks_first_and_says_what_it_did(tmp_path: Path) -> None:
    url = golden("v1", tmp_path)
    told = CliRunner().invoke(app, ["store", "upgrade", "--store", url], input="n\n")
    assert told.exit_code == 1
    with closing(open_store(url)) as store:
        assert store.version() == 1
    told = CliRunner().invoke(app, ["store", "upgrade", "--store", url, "--yes"])
    assert told.stdout.startswith("store version 1 is now 3: ")
    told = CliRunner().invoke(app, ["store", "upgrade", "--store", url, "--yes"])
    assert told.stdout == "store version 3 is the newest; nothing was changed\n"
    told = CliRunner().invoke(app, ["store", "upgrade", "--store", url, "--yes", "--json"])
    assert json.loads(told.stdout)["before"] == 3
