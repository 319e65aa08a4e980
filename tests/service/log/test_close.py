"""Closing a store while other threads use it: they finish first, and those that come later are refused."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from litestar.testing import TestClient

from coterie.data.logs.records import Tick, encode, pack
from coterie.service import app as app_module
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.log.store import Append, open_store
from coterie.service.serve import make_app
from coterie.service.settings import Settings
from coterie.service.store_errors import StoreError
from tests.service import postgres
from tests.service.helpers import opened

LONG = 300  # seconds that a machine may be busy
MOMENT = 0.3  # seconds in which what must wait does not end


class Gate:
    """Work in a thread that waits until it is let through; `events` has what happened, in order."""

    def __init__(self) -> None:
        self.begun, self.let = threading.Event(), threading.Event()
        self.events: list[str] = []

    def pass_(self, name: str) -> int:
        self.begun.set()
        assert self.let.wait(LONG)
        self.events.append(name)
        return 1

    def watch(self, store: Any) -> None:
        """Note when a store is closed."""
        close = store.close

        def closed() -> None:
            close()
            self.events.append("closed")

        store.close = closed


def test_a_file_is_closed_when_no_thread_reads_it_any_more(tmp_path: Path) -> None:
    store, gate = SqliteStore(str(tmp_path / "log.db")), Gate()
    store._read.create_function("slow", 0, lambda: gate.pass_("read"))
    gate.watch(store)
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(store._rows, "SELECT slow()")
        assert gate.begun.wait(LONG)
        closing = pool.submit(store.close)
        threading.Event().wait(MOMENT)
        waits = not closing.done()
        gate.let.set()
        assert waits
        assert reading.result(LONG) == [(1,)]
        closing.result(LONG)
    assert gate.events == ["read", "closed"]
    _refuses_everything(store)
    with opened(tmp_path / "log.db") as again:
        assert again.bounds() == (0, 0)


def test_a_database_is_closed_when_no_thread_reads_it_any_more() -> None:
    with postgres.server() as url:
        store: Any = open_store(url)
        with ThreadPoolExecutor() as pool:
            reading = pool.submit(store._rows, "SELECT pg_sleep(1) IS NULL")
            while not store._reading.locked():
                threading.Event().wait(0.01)
            store.close()
            assert reading.result(LONG) == [(False,)]
        _refuses_everything(store)
        with pytest.raises(StoreError, match="is closed"):
            store.take_lease("work")


def _refuses_everything(store: Any) -> None:
    with pytest.raises(StoreError, match="is closed"):
        store.bounds()
    with pytest.raises(StoreError, match="is closed"):
        store.append(Append(pack(0, [encode(Tick(1))])))
    store.close()  # once more does no harm


def test_a_stop_waits_for_the_thread_that_reads_the_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "KEYS_EVERY", 0.01)
    store: Any = SqliteStore(str(tmp_path / "log.db"))
    app: Any = make_app(Settings(store=store.where), store)
    gate = Gate()
    gate.watch(store)
    store.keys = lambda: [] * gate.pass_("keys")
    with TestClient(app, base_url="http://127.0.0.1"):
        assert gate.begun.wait(LONG)
        threading.Timer(MOMENT, gate.let.set).start()
    assert gate.events[-2:] == ["keys", "closed"]
