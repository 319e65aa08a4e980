"""Upgrading a store to the newest version at once; otherwise the service's first snapshot does it."""

from msgspec import Struct

from coterie.errors import FileError
from coterie.service.log.recovery import recover
from coterie.service.log.store import VERSION, Store
from coterie.service.snapshots import snapshot
from coterie.service.snapshots.saving import save_now


class Upgraded(Struct, frozen=True):
    """What became of a store."""

    before: int  # the version it had
    now: int
    records: int
    users: int


def upgrade(store: Store) -> Upgraded:
    """Write a snapshot in the newest form, and read it back. The whole store is read before anything is written."""
    before = store.version()
    first, end = store.bounds()
    bandit = recover(store)
    if before != VERSION:
        state = snapshot.dump(bandit)
        save_now(bandit, store)
        if store.version() != VERSION or snapshot.dump(recover(store)) != state:
            raise FileError("the store does not read back as it was before the upgrade; restore a backup")
    return Upgraded(before, store.version(), end - first, len(bandit.users))
