"""Large snapshots: cut into pieces that are written once, in both stores, and read back to the same bits."""

import random
from pathlib import Path
from typing import Any

import pytest

from coterie.service import pieces, snapshot
from coterie.service.encoding import encode_action
from coterie.service.records import Tick, encode, pack
from coterie.service.sqlite_store import SqliteStore
from coterie.service.store import Append
from coterie.service.upkeep import let_go
from tests.service.helpers import START, engine
from tests.service.test_store import Open, again, database  # noqa: F401 (fixtures)

MB = 1 << 20


def written(store: Any) -> list[bytes]:
    """Return the names of the pieces in a store."""
    return sorted(store._pieces())


def state(seed: int, size: int = 5 * MB + 17) -> bytearray:
    return bytearray(random.Random(seed).randbytes(size))


def test_a_large_snapshot_is_read_back_and_the_next_costs_what_changed(again: Open) -> None:  # noqa: F811
    store = again()
    store.append(Append(pack(0, [encode(Tick(k)) for k in range(10)])))
    first = state(0)
    store.save_snapshot(2, bytes(first))
    before = written(store)
    assert len(before) == 6
    second = first.copy()
    second[3 * MB + 5] ^= 1
    store.save_snapshot(4, bytes(second))
    assert len(set(written(store)) - set(before)) == 1
    assert list(store.snapshots()) == [(4, bytes(second)), (2, bytes(first))]
    assert store.positions() == [4, 2]
    store = again()
    assert list(store.snapshots()) == [(4, bytes(second)), (2, bytes(first))]
    store.save_snapshot(6, b"small", alone=True)
    assert written(store) == []
    assert list(store.snapshots()) == [(6, b"small")]
    assert store.size() > 0


def test_what_a_crash_left_behind_goes_with_the_next_snapshot(
    again: Open,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = again()
    store.append(Append(pack(0, [encode(Tick(k)) for k in range(10)])))
    store.save_snapshot(2, bytes(state(0)))

    def crash(names: list[bytes]) -> bytes:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(pieces, "write_manifest", crash)
        with pytest.raises(KeyboardInterrupt):
            store.save_snapshot(4, bytes(state(1)))
    assert len(written(store)) == 12
    assert store.positions() == [2]
    store = again()
    store.save_snapshot(5, bytes(state(2)), alone=True)
    assert len(written(store)) == 6
    assert [position for position, _ in store.snapshots()] == [5]


def test_a_snapshot_with_a_damaged_piece_is_passed_over(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "log.db"))
    try:
        store.append(Append(pack(0, [encode(Tick(k)) for k in range(10)])))
        for position in (2, 4):
            store.save_snapshot(position, bytes(state(position)))
        name = pieces.read_manifest(store._rows("SELECT state FROM snapshots WHERE position = 4")[0][0])
        assert name is not None
        with store._changing() as cursor:
            cursor.execute("UPDATE pieces SET body = ? WHERE name = ?", (b"damaged", name[2]))
        assert store.positions() == [2]
        assert [position for position, _ in store.snapshots()] == [2]
        assert let_go(store, before=100) == 0  # the batch before the damaged one is still needed
    finally:
        store.close()


def test_a_large_model_survives_as_a_snapshot_bit_for_bit() -> None:
    made = engine()
    chance = random.Random(0)
    for k in range(30_000):
        item, user = f"item-{chance.randrange(900)}", f"user-{k}"
        sent = encode_action(
            item, [{"tone": f"t{chance.randrange(50)}"}], [{"hour": k % 24, "day": f"d{k % 7}"}]
        )
        made.observe(user, float(chance.random() < 0.4), START, None, hashed=sent)
    data = snapshot.dump(made)
    assert data.endswith(snapshot.TRAILER)
    assert len(data) > 4 * MB
    restored = snapshot.restore(data)
    restored.know(made.ids)
    assert snapshot.dump(restored) == data
    for both in (made, restored):
        both.observe("user-1", 1.0, START, "item-1")
    assert snapshot.dump(restored) == snapshot.dump(made)


def test_what_was_frozen_no_longer_changes() -> None:
    made = engine()
    made.observe("ann", 1.0, START, "a")
    frozen, before = snapshot.freeze(made), snapshot.dump(made)
    made.observe("ann", -1.0, START, "b")
    made.forget("ann", START)
    assert snapshot.pack(frozen) == before
    assert snapshot.dump(made) != before


def test_the_write_ahead_log_stays_small(tmp_path: Path) -> None:
    """SQLite's own checkpoints are off, because they swallow a sync that fails: the store makes them."""
    store = SqliteStore(str(tmp_path / "log.db"))
    try:
        for position in range(1, 7):
            store.save_snapshot(position, bytes(state(position)))
        assert (tmp_path / "log.db-wal").stat().st_size < 16 * MB  # of more than 30 written
    finally:
        store.close()
