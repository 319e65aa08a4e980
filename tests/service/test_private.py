"""Nobody else on the machine can read what the service writes, at no moment."""

import os
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from coterie.cli.app import app
from coterie.data.logs.records import flatten
from coterie.service.files.exports import write_dsjson, write_parquet
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.private import make_private, open_private
from tests.service.helpers import ask, settings_of, with_coordinator
from tests.service.process import service


@pytest.fixture(autouse=True)
def generous() -> Iterator[None]:
    """An umask that forbids nothing: only what the code says counts."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    """Return what may be done with the files of a folder, by name."""
    return {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in folder.iterdir()}


def test_a_store_is_private_before_anything_is_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked at whenever SQLite is about to do something, from its first statement on."""
    seen: set[str] = set()
    connect = sqlite3.connect

    def watched(*args: Any, **more: Any) -> Any:
        def look(_: str) -> None:
            assert set(modes(tmp_path).values()) == {"0o600"}
            seen.update(modes(tmp_path))

        assert set(modes(tmp_path).values()) == {"0o600"}
        connection = connect(*args, **more)
        connection.set_trace_callback(look)
        return connection

    monkeypatch.setattr(sqlite3, "connect", watched)

    async def work(coordinator: Any) -> None:
        await coordinator.rank(ask("e1", "ann"))
        await coordinator.snapshot()
        assert set(modes(tmp_path).values()) == {"0o600"}

    with_coordinator(settings_of(tmp_path / "log.db"), work)
    assert seen == {"log.db", "log.db-wal", "log.db-shm", "log.db.lock", "log.db.maintenance"}
    assert set(modes(tmp_path).values()) == {"0o600"}


def test_files_that_a_crash_left_readable_become_private(tmp_path: Path) -> None:
    SqliteStore(str(tmp_path / "log.db")).close()
    for name in ("log.db", "log.db-wal", "log.db-shm"):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(0o644)
    store = SqliteStore(str(tmp_path / "log.db"))
    assert set(modes(tmp_path).values()) == {"0o600"}
    store.close()


@pytest.mark.parametrize("write", [write_parquet, write_dsjson])
def test_an_export_is_private_from_the_first_byte(write: Any, tmp_path: Path) -> None:
    """Also where a file of that name could be read by others, and is open for somebody."""

    async def work(coordinator: Any) -> None:
        await coordinator.rank(ask("e1", "ann"))

    with_coordinator(settings_of(tmp_path / "log.db"), work)
    path = tmp_path / "log.out"
    path.write_text("old")
    path.chmod(0o644)
    store = SqliteStore(str(tmp_path / "log.db"))

    def watched() -> Iterator[Any]:
        for pair in flatten(store.read()):
            assert modes(tmp_path)["log.out"] == "0o600"
            yield pair

    with path.open() as spy:
        assert write(watched(), store.users(), path) > 0
        assert spy.read() == "old"
    store.close()
    assert b"ann" in path.read_bytes()
    assert set(modes(tmp_path).values()) == {"0o600"}


def test_what_a_repair_keeps_is_private(tmp_path: Path) -> None:
    SqliteStore(str(tmp_path / "log.db")).close()
    (tmp_path / "log.db-wal").write_bytes(b"damaged")
    (tmp_path / "log.db-wal").chmod(0o644)
    done = CliRunner().invoke(app, ["store", "repair", "--store", str(tmp_path / "log.db"), "--yes"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "log.db-wal.damaged").read_bytes() == b"damaged"
    assert set(modes(tmp_path).values()) == {"0o600"}


def test_a_running_service_writes_nothing_that_others_can_read(tmp_path: Path) -> None:
    with service("--store", str(tmp_path / "log.db")) as running:
        assert "log.db-wal" in modes(tmp_path)
        assert set(modes(tmp_path).values()) == {"0o600"}
        status = Path(f"/proc/{running.process.pid}/status")
        assert not status.exists() or "Umask:\t0077" in status.read_text()


def test_a_file_that_cannot_be_changed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "log.db").touch()

    def refused(*_: Any) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr(Path, "chmod", refused)
    make_private(tmp_path / "log.db")
    assert "others can read" in caplog.text
    assert "not yours" in caplog.text


def test_a_device_is_written_to_as_it_is() -> None:
    with open_private(Path(os.devnull)) as file:
        file.write(b"nothing")
    assert stat.S_IMODE(Path(os.devnull).stat().st_mode) & 0o600 == 0o600
