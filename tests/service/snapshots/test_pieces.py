"""Snapshots in pieces: those that changed are written, in both stores, and any crash leaves a sound one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from coterie.data.logs.records import ShownAction, pack
from coterie.service.core.bandit import Bandit
from coterie.service.core.encoding import shown
from coterie.service.log import pieces
from coterie.service.log.retention import remove_old
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.log.store import Append, Store
from coterie.service.snapshots import snapshot
from coterie.service.snapshots.recovery import recover
from coterie.service.snapshots.saving import save_now
from tests.service.helpers import START, bandit, opened
from tests.service.log.test_store import Open, again, database  # noqa: F401 (fixtures)

MB = 1 << 20


def crowd(users: int, **config: Any) -> Bandit:
    """Return a bandit in which so many users paid for something with features."""
    made = bandit(**config)
    for k in range(users):
        features = {"tone": f"t{k % 50}", **dict.fromkeys("abcdefgh", k % 7)}
        sent = shown(f"item-{k % 90}", [features], [{"hour": k % 24, "day": f"d{k % 7}"}])
        made.observe(f"user-{k}", sent, float(k % 3 == 0), START + k)
    return made


def append(store: Store, made: Bandit) -> None:
    """Keep in a store what a bandit did since the last time."""
    first = made.position - len(made.outbox)
    records, named, gone, scrub = made.drain()
    store.append(Append(pack(first, records), named, gone, scrub))


def test_a_snapshot_is_read_back_and_the_next_writes_what_changed(again: Open) -> None:  # noqa: F811
    store, made = again(), crowd(5000)
    append(store, made)
    save_now(made, store)
    before = store.pieces()
    assert len(before) > 30
    made.observe("user-7", ShownAction("item-7"), 1.0, START + 9000)
    append(store, made)
    save_now(made, store)
    # A block of users, and the pieces of the effects that changed: old ones and perhaps new.
    assert 2 <= len(store.pieces() - before) <= 12
    assert store.positions() == [made.position, made.position - 1]
    store = again()
    found = recover(store)
    assert snapshot.dump(found) == snapshot.dump(made)
    assert [snapshot.restore(row, None, store.piece).position for _, row in store.snapshots()] == [5002, 5001]
    # Also after a start nothing is written again that did not change.
    before = store.pieces()
    found.observe("user-8", ShownAction("item-7"), 1.0, START + 9001)
    append(store, found)
    save_now(found, store, alone=True)
    assert 2 <= len(store.pieces() - before) <= 12
    assert store.positions() == [5003]
    assert set(pieces.names(next(iter(store.snapshots()))[1])) == store.pieces()


@contextmanager
def crash_at(store: Any, transaction: int) -> Iterator[list[int]]:
    """Let a store fail in its nth transaction: just before it, or just before it is committed."""
    left, inner = [transaction], store._changing

    @contextmanager
    def changing(*size: int, **kind: bool) -> Iterator[Any]:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt
        with inner(*size, **kind) as cursor:
            yield cursor
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt

    store._changing = changing
    try:
        yield left
    finally:
        del store._changing


def test_a_crash_at_any_point_leaves_a_sound_snapshot(again: Open) -> None:  # noqa: F811
    made = crowd(600)
    store = again()
    append(store, made)
    save_now(made, store)
    crashes = 0
    while True:
        made.observe(f"user-{crashes}", ShownAction("item-1"), 1.0, START + 9000)
        made.forget(f"user-{500 - crashes}", START + 9000)
        append(store, made)
        with crash_at(store, crashes + 1) as left:
            try:
                save_now(made, store)
            except KeyboardInterrupt:
                crashes += 1
            finished = left[0] > 0
        store = again()
        assert store.positions()
        assert snapshot.dump(recover(store)) == snapshot.dump(made)
        if finished:
            break
    assert crashes >= 6
    assert store.positions()[0] == made.position
    needed = {name for _, row in store.snapshots() for name in pieces.names(row)}
    assert store.pieces() == needed  # what the crashes left behind is gone


def test_a_start_reads_again_while_others_keep_newer_snapshots(
    again: Open,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Between the row of a snapshot and its pieces, another service keeps two more, and cuts the log."""
    store, made = again(), crowd(600)
    append(store, made)
    save_now(made, store)
    read = store.piece

    def others_work() -> None:
        for k in range(2):
            made.observe(f"user-{k}", ShownAction("item-1"), 1.0, START + 9000 + k)
            append(store, made)
            save_now(made, store)
        remove_old(store, before=START + 20_000)

    def piece(name: bytes) -> bytes | None:
        del store.piece
        others_work()
        return read(name)

    store.piece = piece  # type: ignore[method-assign]
    found = recover(store)
    assert store.bounds()[0] > 0
    assert snapshot.dump(found) == snapshot.dump(made)
    assert "the snapshot at 601 was removed meanwhile" in caplog.text
    assert "is not used" not in caplog.text


def test_a_start_does_not_pass_over_records_that_are_removed_before_it_reads_them(
    again: Open,  # noqa: F811
) -> None:
    store, made = again(), crowd(40)
    append(store, made)
    save_now(made, store)
    read = store.scrubs

    def scrubs() -> list[int]:  # asked for after the snapshot was read, and before the log is
        del store.scrubs
        for k in range(3):
            made.observe(f"user-{k}", ShownAction("item-1"), 1.0, START + 9000 + k)
            append(store, made)
            save_now(made, store)
        remove_old(store, before=START + 20_000)
        return read()

    store.scrubs = scrubs  # type: ignore[method-assign]
    found = recover(store)
    assert store.bounds()[0] > 41
    assert snapshot.dump(found) == snapshot.dump(made)


def test_a_snapshot_with_a_damaged_piece_is_passed_over(tmp_path: Path) -> None:
    made = crowd(40)
    with opened(tmp_path / "log.db") as store:
        for k in range(2):
            made.observe("user-1", ShownAction("item-1"), 1.0, START + 9000 + k)
            append(store, made)
            save_now(made, store)
        (_, newest), (_, before) = store.snapshots()
        damaged = (set(pieces.names(newest)) - set(pieces.names(before))).pop()
        with store._changing() as cursor:
            cursor.execute("UPDATE pieces SET body = ? WHERE name = ?", (b"damaged", damaged))
        assert store.positions() == [made.position - 1]
        assert snapshot.dump(recover(store)) == snapshot.dump(made)
        bounds = store.bounds()
        remove_old(store, before=START)
        assert store.bounds() == bounds  # the batch before the damaged one is still needed


def test_a_large_model_survives_as_a_snapshot_bit_for_bit() -> None:
    made = crowd(3000)
    data = snapshot.dump(made)
    restored = snapshot.restore(data)
    restored.user_names.take(made.ids)
    assert snapshot.dump(restored) == data
    for both in (made, restored):
        both.observe("user-1", ShownAction("item-1"), 1.0, START + 9000)
    assert snapshot.dump(restored) == snapshot.dump(made)


def test_large_arrays_of_other_policies_are_kept_by_their_content(tmp_path: Path) -> None:
    made = bandit(policy="linucb", dimensions=64)
    action = shown("item", [{"tone": "calm", "size": 3}], [{"hour": 8}])
    for k in range(150):
        made.observe(f"user-{k}", action, float(k % 3 == 0), START)
    with opened(tmp_path / "log.db") as store:
        append(store, made)
        save_now(made, store)
        state: Any = snapshot.Copy(made, store.pieces())
        assert state._state.models["vectors"].large
        state.end(kept=False)
        before = store.pieces()
        made.observe("user-149", action, 1.0, START)
        append(store, made)
        save_now(made, store)
        assert len(store.pieces() - before) < len(before)
        assert snapshot.dump(recover(store)) == snapshot.dump(made)
        assert recover(store).position == made.position


def test_the_write_ahead_log_stays_small(tmp_path: Path) -> None:
    """SQLite's own checkpoints are off, because they do not report a sync that fails: the store makes them."""
    store = SqliteStore(str(tmp_path / "log.db"))
    try:
        for position in range(1, 31):
            body = bytes([position]) * MB
            store.save_snapshot(position, b"a state", new={pieces.name_of(body): body})
        assert (tmp_path / "log.db-wal").stat().st_size < 16 * MB  # of more than 30 written
    finally:
        store.close()
