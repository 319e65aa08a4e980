"""Shards in this process: the same code as a deployment on several machines."""

from dataclasses import dataclass
from typing import Any, final

from coterie.engines.shard import AnyShard, Kind, Snapshot
from coterie.engines.sharded import Sharded
from coterie.engines.sharded_users import ShardedUsers
from coterie.engines.supervisor import WhenDown


@final
@dataclass
class Local:
    """Keeps users' models in several shards of this process, for tests and first trials."""

    shards: int = 4
    when_down: WhenDown = "wait"
    snapshot_every: int = 100_000

    def models(self, n_features: int | None, one_hot: bool) -> Sharded:
        """Return empty models."""
        kind = Kind(n_features, one_hot)
        return Sharded(InProcess(), kind, self.shards, self.when_down, self.snapshot_every)

    def user_store(self) -> ShardedUsers:
        """Return empty storage for users' parts."""
        return ShardedUsers(InProcess(), self.shards, self.when_down, self.snapshot_every)

    def close(self) -> None:
        """Do nothing: the shards end with this process."""


@final
class InProcess:
    """A backend whose shards answer immediately: the ticket is the answer itself."""

    def __init__(self) -> None:
        self.shards: dict[int, Any] = {}

    def start(self, shard: int, kind: type[AnyShard], *parameters: Any) -> None:
        self.shards[shard] = kind(*parameters)

    def stop(self, shard: int) -> None:
        del self.shards[shard]

    def ask(self, shard: int, method: str, *arguments: Any) -> Any:
        return getattr(self.shards[shard], method)(*arguments)

    def is_done(self, ticket: Any) -> bool:
        return True

    def take(self, ticket: Any, patient: bool = False) -> Any:
        return ticket

    def keep(self, snapshot: Snapshot) -> Snapshot:
        return snapshot
