"""Shards in this process: what a deployment over several machines does, without the machines."""

from dataclasses import dataclass
from typing import Any, final

from coterie.engines.keeper import WhenDown
from coterie.engines.people import ShardedPeople
from coterie.engines.shard import AnyKind, Kind, Snapshot
from coterie.engines.sharded import Sharded
from coterie.models.protocol import Eligible


@final
@dataclass
class Local:
    """Keeps users' models in several shards of this process. Good for tests and for trying things out."""

    shards: int = 4
    when_down: WhenDown = "wait"
    snapshot_every: int = 100_000

    def models(self, n_features: int | None, one_hot: bool, eligible: Eligible) -> Sharded:
        """Return empty models."""
        kind = Kind(n_features, one_hot, eligible)
        return Sharded(Here(), kind, self.shards, self.when_down, self.snapshot_every)

    def user_store(self) -> ShardedPeople:
        """Return room for users' parts."""
        return ShardedPeople(Here(), self.shards, self.when_down, self.snapshot_every)

    def close(self) -> None:
        """Do nothing: what is in this process ends with it."""


@final
class Here:
    """A crew whose shards answer at once."""

    def __init__(self) -> None:
        self.shards: dict[int, Any] = {}

    def start(self, shard: int, kind: AnyKind) -> None:
        """Start an empty shard."""
        self.shards[shard] = kind.shard()(kind)

    def stop(self, shard: int) -> None:
        """End a shard."""
        del self.shards[shard]

    def ask(self, shard: int, method: str, *arguments: Any) -> Any:
        """Call a method, and return the answer itself as the ticket."""
        return getattr(self.shards[shard], method)(*arguments)

    def is_done(self, ticket: Any) -> bool:
        """Return True."""
        return True

    def take(self, ticket: Any, patient: bool = False) -> Any:
        """Return the answer."""
        return ticket

    def keep(self, snapshot: Snapshot) -> Snapshot:
        """Return it."""
        return snapshot
