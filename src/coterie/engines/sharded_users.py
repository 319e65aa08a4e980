"""Users' parts in several shards. A question goes only to the shards that have the users."""

from collections.abc import Hashable, Iterator, Sequence
from typing import final

from coterie.engines.moving import move_slots
from coterie.engines.placement import Placement
from coterie.engines.supervisor import Backend, Supervisor, WhenDown
from coterie.engines.users_shard import Known, UsersKind, UsersShard
from coterie.models.hierarchy.remote_users import StoredUser
from coterie.models.protocol import Seen


@final
class ShardedUsers:
    """Parts in shards. See `coterie.models.hierarchy.remote_users.UserStore` for what each call means."""

    def __init__(self, backend: Backend, shards: int, when_down: WhenDown, snapshot_every: int) -> None:
        self._supervisor = Supervisor(backend, UsersKind(), shards, when_down, snapshot_every)
        self.placement = Placement(shards)

    @property
    def shards(self) -> int:
        """How many shards there are."""
        return len(self._supervisor)

    # Questions.

    def find(self, users: Sequence[Hashable]) -> list[StoredUser | None]:
        """Ask the shard of each user once."""
        by_shard = self._by_shard([(user, None) for user in users])
        calls = {shard: ("find", [user for user, _ in known]) for shard, known in by_shard.items()}
        found: dict[Hashable, StoredUser | None] = {}
        for shard, parts in self._supervisor.ask(calls).items():
            found.update(zip(calls[shard][1], parts, strict=True))
        return [found.get(user) for user in users]

    def missing(self, user: Hashable) -> Seen | None:
        """Return how many shards answer, if the shard of the user does not."""
        up = self._supervisor.up
        return None if self.placement.shard_of(user) in up else Seen(0, len(up), self.shards)

    def is_ready(self) -> bool:
        """Return whether all shards answer; first wait for them or refuse, as `when_down` says."""
        return self._supervisor.is_ready()

    def between(self, first: int, last: int) -> list[Known]:
        """Ask all shards for the users with these rows."""
        calls = dict.fromkeys(range(self.shards), ("between", first, last))
        found = self._supervisor.ask(calls, anyway=True)
        return sorted((one for known in found.values() for one in known), key=lambda one: one[1].row)

    @property
    def users(self) -> list[Hashable]:
        """The known users, in the order of rows."""
        found = self._supervisor.ask_all("rows")
        return [
            name
            for _, name in sorted((one for rows in found.values() for one in rows), key=lambda one: one[0])
        ]

    def settle(self) -> None:
        """Wait until all shards answer."""
        self._supervisor.settle()

    # Changes.

    def put(self, parts: Sequence[Known]) -> None:
        """Send parts to the shards of their users."""
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
        """Replace all parts."""
        by_shard = self._by_shard(parts)
        for shard in range(self.shards):
            own = UsersShard(UsersKind())
            own._put(by_shard.get(shard, []))
            self._supervisor.reset(shard, own.tensors())
        self.settle()

    def rebalance(self, shards: int) -> Iterator[tuple[int, int]]:
        """Move users, slot by slot, until `shards` shards have equal shares; yields (slots moved, of how many)."""
        return move_slots(self._supervisor, self.placement, shards)

    def close(self) -> None:
        """End all shards."""
        while self.shards:
            self._supervisor.close()

    def _by_shard(self, parts: Sequence[tuple[Hashable, StoredUser | None]]) -> dict[int, list[Known]]:
        found: dict[int, list[Known]] = {}
        for user, part in parts:
            found.setdefault(self.placement.shard_of(user), []).append((user, part))  # type: ignore[arg-type]
        return found
