"""Recovery: the newest sound snapshot, then the log after it. The result equals the state before the crash."""

from collections.abc import Callable, Collection, Iterable

from coterie.errors import FileError
from coterie.policies.cab import Engine as Shards
from coterie.service.core.bandit import Bandit
from coterie.service.core.records import Activate, Batch, Record, Reward, flatten
from coterie.service.log.damage import readable
from coterie.service.log.erasure import Scrubber
from coterie.service.log.reading import LogReader
from coterie.service.log.store import Store
from coterie.service.logs import log
from coterie.service.settings import Config
from coterie.service.snapshots import snapshot
from coterie.service.snapshots.pieces import DamagedError
from coterie.service.trial.assignment import alone

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


class ScrubbedMeanwhileError(FileError):
    """The owner of the log scrubbed a user while it was read: some records have the old event ids, some the new."""


def recover(
    store: Store,
    from_empty: bool = False,
    shards: Shards | None = None,
    owned: bool = True,
    progress: Progress | None = None,
) -> Bandit:
    """Return the bandit as the store's log says, with its users in `shards` if any; `from_empty` ignores snapshots.

    With owned=False, another process may write to the log and scrub it meanwhile; see `replay`.
    """
    first, end = store.bounds()
    bandit = Bandit(shards)
    for position, state in () if from_empty else store.snapshots():
        if first <= position <= end:
            try:
                bandit = snapshot.restore(state, shards, store.piece)
                break
            except DamagedError as error:  # the one before it may be sound
                log.error(f"the snapshot at {position} is not used: {error}")
    if bandit.position < first:
        raise FileError(f"the log begins at record {first}, without a sound snapshot; restore a backup")
    attach(bandit, LogReader(store))
    bandit.user_names.take(store.users())
    if progress is not None:
        progress.read, progress.of = 0, end - bandit.position
    catch_up(bandit, store, shards, owned, progress)
    return bandit


def attach(bandit: Bandit, log: LogReader) -> None:
    """Let a bandit and its challenger find decisions in the log that are no longer in memory."""
    bandit.log = log
    if bandit.challenger is not None:
        bandit.challenger.log = bandit


def catch_up(
    bandit: Bandit,
    store: Store,
    shards: Shards | None = None,
    owned: bool = True,
    progress: Progress | None = None,
) -> None:
    """Apply the log from the bandit's position on; `owned` as in `recover`."""
    bandit.relearn = lambda config: relearn(store, config, bandit.position, shards, owned=owned)
    replay(bandit, store, owned=owned, progress=progress)
    bandit.relearn = None


def replay(
    bandit: Bandit,
    store: Store,
    end: int | None = None,
    users: Users = None,
    owned: bool = True,
    progress: Progress | None = None,
    read: Callable[[Store, int], Iterable[Batch]] = lambda store, first: store.read(first),
) -> None:
    """Apply the log's records from the bandit's position up to `end`.

    A crash may have left users half scrubbed: those that the store names, or `users`. Their records are read as if
    the scrub were complete.
    With owned=False, a user may be scrubbed between a decision and its reward: then ScrubbedMeanwhileError is
    raised, and the bandit must not be used.
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
            if not owned and _misses_its_event(bandit, clean, begin):
                raise ScrubbedMeanwhileError(f"record {position} is about an event of another name")
            bandit.apply(clean)
    bandit.drain()


def _misses_its_event(bandit: Bandit, record: Record, begin: int) -> bool:
    """Return whether a record is about an event that the bandit should know but does not."""
    if not isinstance(record, Reward | Activate) or record.decision >= 0 or record.event in bandit.events:
        return False
    if not bandit.partial:
        return True
    # The log began at `begin`. A scrubbed id has the position of its decision; any other is of an earlier one.
    return record.event.startswith("\0") and int(record.event[1:]) >= begin


def relearn(
    store: Store,
    config: Config,
    end: int,
    shards: Shards | None = None,
    users: Users = None,
    owned: bool = True,
    log: LogReader | None = None,
) -> Bandit:
    """Return a bandit that learned the kept log up to `end` with another policy; the rest is as in `replay`.

    Damaged records are passed over.
    """
    bandit = Bandit(shards)
    bandit.position = store.bounds()[0]
    bandit.log = log or LogReader(store)
    bandit.fixed = bandit.config = alone(config)
    bandit.partial = bandit.position > 0
    replay(bandit, store, end, users, owned, read=readable)
    return bandit
