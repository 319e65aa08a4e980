"""R5: a torn tail is cut; damage inside the log stops the start and names the place and the way to repair."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.data.logs.records import Record, Tick, encode, flatten, pack
from coterie.errors import CoterieError, FileError
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.log.store import Append
from coterie.service.snapshots import snapshot
from coterie.service.snapshots.recovery import recover
from tests.service.helpers import START, ask, bandit, opened


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: thousands of stores are opened here, and each would sync."""
    memory = Path("/dev/shm")
    if not (memory.is_dir() and os.access(memory, os.W_OK)):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as name:
        yield Path(name)


def _write(path: Path, batches: int, stop: bool) -> list[int]:
    """Write a small log, and return the size of the write-ahead log after each batch."""
    store = SqliteStore(str(path))
    made = bandit(exploration=0.5)
    sizes = []
    for number in range(batches):
        made.rank(ask(f"event-{number}", f"user-{number % 3}"), START + number)
        made.reward(f"event-{number}", 1.0, START + number)
        records, named, gone, _ = made.drain()
        store.append(Append(pack(made.position - len(records), records), named, gone))
        sizes.append(Path(f"{path}-wal").stat().st_size)
    if stop:
        store.close()
    else:
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{path.with_name('crashed.db')}{suffix}")
        store.close()
    return sizes


def _content(path: Path) -> tuple[list[Record], dict[int, str]]:
    with opened(path) as store:
        return [record for _, record in flatten(store.read())], store.users()


def _flip(source: Path, target: Path, data: dict[str, bytes], suffix: str, place: int, mask: int) -> None:
    for end, content in data.items():
        changed = bytearray(content)
        if end == suffix:
            changed[place] ^= mask
        Path(f"{target}{end}").write_bytes(changed)


@pytest.mark.parametrize(
    ("mask", "every"),
    [
        (0xFF, False),
        (0x01, False),
        pytest.param(0xFF, True, marks=pytest.mark.slow),
        pytest.param(0x01, True, marks=pytest.mark.slow),
    ],
)
def test_every_flipped_byte_of_a_closed_store_is_harmless_or_named(
    folder: Path, mask: int, every: bool
) -> None:
    _write(folder / "log.db", 3, stop=True)
    whole = _content(folder / "log.db")
    data = {"": (folder / "log.db").read_bytes()}
    stopped = 0
    for place in _places(data[""], every):
        _flip(folder / "log.db", folder / "bad.db", data, "", place, mask)
        for extra in ("-wal", "-shm"):
            Path(f"{folder / 'bad.db'}{extra}").unlink(missing_ok=True)
        try:
            found = _content(folder / "bad.db")
        except CoterieError as error:
            stopped += 1
            assert "bad.db" in str(error) or "records" in str(error), (place, error)  # noqa: PT017
        else:
            assert found == whole, place
    assert stopped > 500


def _places(data: bytes, every: bool) -> list[int]:
    """Return every byte, or every third that is not zero and some of the zeros: pages are mostly empty."""
    full = [k for k, byte in enumerate(data) if byte]
    return list(range(len(data))) if every else sorted({*full[::3], *range(0, len(data), 97)})


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_flipped_byte_of_a_crashed_log_is_harmless_named_or_in_the_last_batch(
    folder: Path, every: bool
) -> None:
    SqliteStore(str(folder / "log.db")).close()  # the tables are in the file, and the batches beside it
    sizes = _write(folder / "log.db", 4, stop=False)
    crashed = folder / "crashed.db"
    data = {end: Path(f"{crashed}{end}").read_bytes() for end in ("", "-wal")}
    for end, content in data.items():
        Path(f"{folder / 'whole.db'}{end}").write_bytes(content)
    records, users = _content(folder / "whole.db")
    assert len(records) == 9
    stopped = 0
    headers = {k for k in range(len(data["-wal"])) if k < 32 or (k - 32) % 4120 < 24}
    flips = [("-wal", place) for place in sorted(headers.union(_places(data["-wal"], every)))]
    flips += [("", place) for place in _places(data[""], every)]
    for suffix, place in flips:
        _flip(crashed, folder / "bad.db", data, suffix, place, 0xFF)
        Path(f"{folder / 'bad.db'}-shm").unlink(missing_ok=True)
        try:
            found = _content(folder / "bad.db")
        except CoterieError as error:
            stopped += 1
            assert "bad.db" in str(error), (place, error)  # noqa: PT017
        else:
            if suffix and place >= sizes[-2]:
                # The last transaction: damage there cannot be told from a torn write, and is cut whole.
                assert found[0] in (records, records[:-2]), place
            else:
                assert found == (records, users), place
    assert stopped > 500


def test_a_tail_torn_at_any_length_is_cut_and_everything_synced_is_there(folder: Path) -> None:
    sizes = _write(folder / "log.db", 4, stop=False)
    crashed = folder / "crashed.db"
    wal = Path(f"{crashed}-wal").read_bytes()
    for length in [*range(sizes[1], len(wal), 523), *sizes[1:]]:
        synced = sum(size <= length for size in sizes)
        shutil.copy(crashed, folder / "torn.db")
        for tail in (b"", b"\0" * 5000, b"\xff" * 5000):
            Path(f"{folder / 'torn.db'}-shm").unlink(missing_ok=True)
            Path(f"{folder / 'torn.db'}-wal").write_bytes(wal[:length] + tail)
            shutil.copy(crashed, folder / "torn.db")
            with opened(folder / "torn.db") as store:
                made = recover(store)
            assert made.position == 1 + 2 * synced, length


def test_damage_names_the_records_and_the_way_to_repair(folder: Path) -> None:
    store = SqliteStore(str(folder / "log.db"))
    store.append(Append(pack(0, [encode(Tick(1)), encode(Tick(2))])))
    store.append(Append(pack(2, [encode(Tick(3))])))
    store._write.execute("UPDATE log SET checksum = checksum + 1 WHERE first = 0")
    with pytest.raises(FileError, match=r"log records 0 to 1 are damaged.*coterie store cut --at 0"):
        list(flatten(store.read()))
    store._write.execute("DELETE FROM log WHERE first = 0")
    with pytest.raises(FileError, match="begins at record 2, without a sound snapshot"):
        recover(store)
    store._write.execute("DELETE FROM log")
    store._write.execute("UPDATE head SET next = 0")
    for first in (0, 2):
        store.append(Append(pack(first, [encode(Tick(1)), encode(Tick(2))])))
    store._write.execute("UPDATE log SET first = 3 WHERE first = 2")
    with pytest.raises(FileError, match=r"records 2 to 2 are missing.*coterie store cut --at 2"):
        recover(store)
    store.close()


def test_a_damaged_snapshot_is_passed_over_for_the_log(folder: Path) -> None:
    _write(folder / "log.db", 4, stop=True)
    with opened(folder / "log.db") as store:
        made = recover(store)
        store.save_snapshot(made.position, snapshot.dump(made))
        store._write.execute("UPDATE snapshots SET checksum = checksum + 1")
        assert snapshot.dump(recover(store)) == snapshot.dump(made)
