"""Recovery: the newest sound snapshot, then the log after it. The result equals the state before the crash."""

import zlib
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from coterie.data.logs.records import Batch, Befriend, Import, Rank, Record, flatten
from coterie.data.logs.rules import Config
from coterie.errors import FileError
from coterie.policies.cab import Engine
from coterie.service.core.bandit import Bandit
from coterie.service.log.damage import readable
from coterie.service.log.erasure import Scrubber
from coterie.service.log.pieces import DamagedError
from coterie.service.log.reading import LogReader
from coterie.service.log.store import PAGE_OF_LOG, Store
from coterie.service.logs import log
from coterie.service.snapshots import snapshot
from coterie.service.trial.assignment import alone

TRIES = 10  # times that the state is read again because others removed what was being read
Users = Collection[int] | None


class Progress:
    """How far a log has been read, for those who wait; they may end the reading."""

    def __init__(self) -> None:
        self.read = 0  # records, after the snapshot
        self.of = 0  # records there are after the snapshot
        self.stopped = False

    def stop(self) -> None:
        """End the reading at the next record, with StoppedError."""
        self.stopped = True

    def count(self) -> None:
        """Count a record."""
        if self.stopped:
            raise StoppedError("the log was not read to its end, because the service stops")
        self.read += 1


class StoppedError(FileError):
    """The service stops while it reads its log."""


class ChangedMeanwhileError(FileError):
    """Other processes removed or scrubbed what was being read. What was read must not be used; read it again."""


def recover(
    store: Store,
    from_empty: bool = False,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> Bandit:
    """Return the bandit as the store's log says, with its users in `engine` if any; `from_empty` ignores snapshots.

    Other processes may meanwhile write to the log, scrub it, and remove old records and snapshots; then it is read
    again.
    """
    for _ in range(TRIES):
        try:
            return _recover(store, from_empty, engine, progress)
        except ChangedMeanwhileError as error:
            log.warning(f"the state is read again: {error}")
    return _recover(store, from_empty, engine, progress)


def _recover(store: Store, from_empty: bool, engine: Engine | None, progress: Progress | None) -> Bandit:
    listed = store.listed()
    first, end = store.bounds()
    bandit = Bandit(engine)
    for position, state in () if from_empty else store.snapshots():
        if first <= position <= end:
            try:
                bandit = snapshot.restore(state, engine, store.piece)
                break
            except DamagedError as error:
                # Whoever removes pieces has removed or replaced the snapshot first.
                if (position, zlib.crc32(state)) not in store.listed():
                    gone = f"the snapshot at {position} was removed meanwhile"
                    raise ChangedMeanwhileError(gone) from error
                # The one before it may be sound.
                log.error(f"the snapshot at {position} is not used: {error}")
    if bandit.position < first:
        if store.listed() != listed:
            raise ChangedMeanwhileError("newer snapshots were kept meanwhile")
        raise FileError(f"the log begins at record {first}, without a sound snapshot; restore a backup")
    bandit.log = LogReader(store)
    if progress is not None:
        progress.read, progress.of = 0, end - bandit.position
    bandit.relearn = lambda config: relearn(store, config, bandit.position, engine)
    replay(bandit, store, progress=progress)
    bandit.relearn = None
    # Others may have named users meanwhile, and the name of a user who was dropped may still be there.
    names = store.users()
    bandit.user_names.take({number: name for number, name in names.items() if number in bandit.users})
    for number in names.keys() - bandit.users.keys():
        if number < bandit.next_user:
            bandit.user_names.drop(number)
    return bandit


def serve_from(bandit: Bandit, store: Store, reader: LogReader, engine: Engine | None = None) -> None:
    """Let a bandit follow the log of a store from where it stands."""
    bandit.log = reader
    bandit.relearn = lambda config: relearn(store, config, bandit.position, engine)


class BehindError(FileError):
    """The log begins after the record that comes next, because older ones were removed."""


class New(NamedTuple):
    """What others have written."""

    records: list[Record]
    names: dict[int, str]  # of new users
    all: bool  # whether that was all


def read_new(store: Store, position: int, next_user: int, until: int = 2**62) -> New:
    """Return the records from a position on, or some of them, and the names of users from a number on."""
    batches = store.tail(position, until)
    if not batches:
        return New([], {}, True)
    if batches[0].first != position:
        if store.bounds()[0] > position:
            raise BehindError(f"record {position} was removed from the log meanwhile")
        raise FileError(f"log record {position} is missing; restore a backup of the store")
    records = [record for _, record in flatten(batches)]
    store.know(record.event for record in records if isinstance(record, Rank))
    new = any(
        getattr(record, "user", -1) >= next_user or isinstance(record, Import | Befriend)
        for record in records
    )
    return New(records, store.users(next_user) if new else {}, len(batches) < PAGE_OF_LOG)


def replay(
    bandit: Bandit,
    store: Store,
    end: int | None = None,
    users: Users = None,
    progress: Progress | None = None,
    read: Callable[[Store, int], Iterable[Batch]] = lambda store, first: store.read(first),
) -> None:
    """Apply the log's records from the bandit's position up to `end`.

    A crash may have left users half scrubbed: those that the store names, or `users`. Their records are read as if
    the scrub were complete.
    Old records may be removed meanwhile: then ChangedMeanwhileError is raised, and the bandit must not be used.
    """
    begin = bandit.position
    scrubber = Scrubber(store.scrubs() if users is None else users)
    for position, record in flatten(read(store, begin)):
        if end is not None and position >= end:
            break
        if position >= begin:
            if progress is not None:
                progress.count()
            clean = scrubber.clean(position, record)
            if position != bandit.position:
                raise ChangedMeanwhileError(f"record {bandit.position} was removed from the log meanwhile")
            bandit.apply(clean)
    bandit.drain()


def relearn(
    store: Store,
    config: Config,
    end: int,
    engine: Engine | None = None,
    users: Users = None,
    log: LogReader | None = None,
) -> Bandit:
    """Return a bandit that learned the kept log up to `end` with another policy; the rest is as in `replay`.

    Damaged records are passed over.
    """
    bandit = Bandit(engine)
    bandit.position = store.bounds()[0]
    bandit.log = log or LogReader(store)
    bandit.fixed = bandit.policies.config = alone(config)
    replay(bandit, store, end, users, read=readable)
    return bandit
