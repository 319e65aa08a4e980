"""Users' parts in several shards. A question goes only to the shards that have the users."""

from collections.abc import Hashable, Sequence
from typing import final

from coterie.engines.in_shards import InShards
from coterie.engines.supervisor import Backend, WhenDown
from coterie.engines.users_shard import Known, UsersShard
from coterie.models.hierarchy.remote_users import StoredUser
from coterie.models.protocol import Seen


@final
class ShardedUsers(InShards):
    """Parts in shards. See `coterie.models.hierarchy.remote_users.UserStore` for what each call means."""

    def __init__(self, backend: Backend, shards: int, when_down: WhenDown, snapshot_every: int) -> None:
        super().__init__(backend, shards, when_down, snapshot_every, UsersShard)

    def find(self, users: Sequence[Hashable]) -> list[StoredUser | None]:
        """Ask the shard of each user once."""
        calls = {shard: ("find", own) for shard, own in self.placement.group(users, users).items()}
        found: dict[Hashable, StoredUser | None] = {}
        for shard, parts in self._supervisor.ask(calls).items():
            found.update(zip(calls[shard][1], parts, strict=True))
        return [found.get(user) for user in users]

    def missing(self, user: Hashable) -> Seen | None:
        up = self._supervisor.up
        return None if self.placement.shard_of(user) in up else Seen(0, len(up), self.shards)

    def is_ready(self) -> bool:
        return self._supervisor.is_ready()

    def between(self, first: int, last: int) -> list[Known]:
        calls = dict.fromkeys(range(self.shards), ("between", first, last))
        found = self._supervisor.ask(calls, anyway=True)
        return sorted((one for known in found.values() for one in known), key=lambda one: one[1].row)

    @property
    def users(self) -> list[Hashable]:
        """The known users, in the order of rows."""
        found = self._supervisor.ask_all("rows")
        rows = sorted((one for own in found.values() for one in own), key=lambda one: one[0])
        return [name for _, name in rows]

    def settle(self) -> None:
        self._supervisor.settle()

    def put(self, parts: Sequence[Known]) -> None:
        by_shard = self._by_shard(parts)
        weight = {shard: len(known) for shard, known in by_shard.items()}
        self._supervisor.change("put", {shard: (known,) for shard, known in by_shard.items()}, weight)

    def drop(self, user: Hashable, row: int, last: int) -> None:
        """Forget a user, and give the row to the user of the last row, who may be in another shard."""
        ((name, _),) = self.between(last, last + 1)
        self._supervisor.change("drop", {self.placement.shard_of(user): (user,)})
        if row != last:
            self._supervisor.change("renumber", {self.placement.shard_of(name): (last, row)})

    def reset(self, parts: Sequence[Known]) -> None:
        by_shard = self._by_shard(parts)
        for shard in range(self.shards):
            own = UsersShard()
            own._put(by_shard.get(shard, []))
            self._supervisor.reset(shard, own.tensors())
        self.settle()

    def _by_shard(self, parts: Sequence[Known]) -> dict[int, list[Known]]:
        return self.placement.group([user for user, _ in parts], parts)
