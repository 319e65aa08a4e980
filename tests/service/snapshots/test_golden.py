"""R8: files of earlier versions stay readable, and unknown versions are refused by name."""

import shutil
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coterie.data.logs.records import Batch, Configure, Observe, Rank, pack
from coterie.data.logs.rules import Config
from coterie.errors import FileError
from coterie.service.core.bandit import Bandit
from coterie.service.snapshots import snapshot
from coterie.service.snapshots.recovery import recover
from tests.service.golden import FOLDER, live
from tests.service.helpers import opened

VERSIONS = ["v4"]  # of stores


@pytest.mark.parametrize("version", VERSIONS)
def test_a_log_of_an_earlier_version_replays(version: str) -> None:
    folder = FOLDER / version
    count, checksum = map(int, (folder / "checksum.txt").read_text().split())
    body = (folder / "batch.msgpack").read_bytes()
    records = Batch(0, count, body, checksum).records()
    assert isinstance(records[0], Configure)
    assert {type(record).__name__ for record in records} == {
        "Configure", "Rank", "Reward", "Activate", "Tick", "Observe", "Forget",
    }  # fmt: skip
    ranks = [record for record in records if isinstance(record, Rank)]
    assert [rank.event for rank in ranks] == [f"event-{k}" for k in range(12)]
    assert any(isinstance(record, Observe) and record.action.id == "a" for record in records)
    made = Bandit()
    for record in records:
        made.apply(record)
    assert made.policies.learned > 5
    assert made.config.policy == Config().policy


@pytest.mark.parametrize("version", VERSIONS)
def test_a_snapshot_and_a_store_of_an_earlier_version_are_read(version: str, tmp_path: Path) -> None:
    folder = FOLDER / version
    restored = snapshot.restore((folder / "snapshot.msgpack").read_bytes())
    shutil.copy(folder / "store.db", tmp_path / "store.db")
    with opened(tmp_path / "store.db") as store:
        found = recover(store)
        assert found.position == restored.position
        assert _without_floats(recover(store, from_empty=True)) == _without_floats(restored)
        assert sorted(found.names) == ["user-0", "user-1", "user-3", "user-9"]


def test_the_newest_golden_files_are_what_is_written_now() -> None:
    """A change of the format without a change of VERSION fails here."""
    made = live()
    kept = msgspec.msgpack.decode(zlib.decompress((FOLDER / VERSIONS[-1] / "batch.msgpack").read_bytes()))
    now = msgspec.msgpack.decode(pack(0, made.outbox).content())
    for old, new in zip(kept, now, strict=True):
        for name in ("reasons", "parts", "chances"):  # the last bits of these depend on the processor
            a, b = old.pop(name, b""), new.pop(name, b"")
            assert len(a) == len(b)
        assert old == new
    state = msgspec.msgpack.decode((FOLDER / VERSIONS[-1] / "snapshot.msgpack").read_bytes())
    assert state.keys() == msgspec.msgpack.decode(snapshot.dump(made)).keys()
    assert _without_floats(snapshot.restore(msgspec.msgpack.encode(state))) == _without_floats(made)


def _without_floats(made: Bandit) -> dict[str, Any]:
    """Return a state without the arrays and sums, whose last bits depend on the processor."""
    state: dict[str, Any] = msgspec.msgpack.decode(snapshot.dump(made))
    state["models"] = {kind: model["learned"] for kind, model in state["models"].items()}
    parts = {
        source: [msgspec.msgpack.decode(body) for body in state["parts"][source].values()]
        for source in ("users", "events", "known_items")
    }
    del state["total"]
    return {
        **state,
        "parts": {**parts, "events": [event[:3] for block in parts["events"] for event in block]},
    }


def test_a_batch_of_an_unknown_version_is_refused_by_name() -> None:
    batch = msgspec.structs.replace(pack(7, []), version=99)
    with pytest.raises(FileError, match="format version 99, this coterie reads version 3"):
        batch.records()
