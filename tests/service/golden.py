"""Writes the golden files: a small log, a snapshot and a store, as this version writes them.

Run it only when a new VERSION is made, and keep the old files: they are what users have on their disks.
"""

import shutil
from pathlib import Path

from coterie.data.logs.records import ShownAction, pack
from coterie.data.logs.rules import Config
from coterie.service.core import bandit
from coterie.service.core.bandit import Bandit
from coterie.service.core.question import Action, Question
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.log.store import Append
from coterie.service.snapshots import snapshot
from coterie.service.snapshots.saving import save_now
from tests.service.helpers import START

FOLDER = Path(__file__).parent / "golden"


def live() -> Bandit:
    """Return a bandit that has met every kind of record."""
    made = Bandit()
    made.configure(Config(exploration=0.25, wait=5.0, dimensions=4), START)
    for k in range(12):
        at = START + 1000 * k
        features = [{"size": k % 3, "tone": "calm"}] if k % 4 == 1 else None
        actions = [Action(name, features) for name in "abc"]
        context = [{"device": {"mobile": True}}] if k % 2 else []
        made.rank(Question(f"event-{k}", f"user-{k % 4}", actions, context, deferred=k % 5 == 0), at)
        if k % 5 == 0:
            made.activate(f"event-{k}", at)
        if k % 3 == 0:
            made.reward(f"event-{k}", 1.0 - k / 8, at)
    made.observe("user-9", ShownAction("a"), 0.5, START + 20_000)
    made.forget("user-2", START + 21_000)
    return made


def write() -> None:
    """Write this version's files."""
    folder = FOLDER / "v4"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    made = live()
    records, named, gone, scrub = made.drain()
    batch = pack(0, records)
    (folder / "batch.msgpack").write_bytes(batch.body)
    (folder / "checksum.txt").write_text(f"{batch.count} {batch.checksum}\n")
    (folder / "snapshot.msgpack").write_bytes(snapshot.dump(made))
    store = SqliteStore(str(folder / "store.db"))
    store.append(Append(batch, named, gone, scrub))
    save_now(made, store)
    store.close()
    for extra in folder.glob("store.db.lock"):
        extra.unlink()


if __name__ == "__main__":
    bandit.new_secret = lambda: b""  # as in the tests
    write()
