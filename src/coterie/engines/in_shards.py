"""Users in several shards: which shard has whom, and how users move between shards, slot by slot."""

from collections.abc import Iterator
from typing import Any

from coterie.engines.placement import Placement
from coterie.engines.supervisor import Backend, Supervisor, WhenDown
from coterie.models.checks import check_count


class InShards:
    """What models and parts of users in shards share."""

    def __init__(
        self, backend: Backend, shards: int, when_down: WhenDown, snapshot_every: int, *kind: Any
    ) -> None:
        self._supervisor = Supervisor(backend, shards, when_down, snapshot_every, *kind)
        self.placement = Placement(shards)

    @property
    def shards(self) -> int:
        """How many shards there are."""
        return len(self._supervisor)

    def rebalance(self, shards: int) -> Iterator[tuple[int, int]]:
        """Move users until `shards` shards have equal shares; yields (slots moved, of how many).

        Other calls may come between two steps: `for done, total in models.rebalance(8): …`.
        """
        check_count("shards", shards)
        supervisor = self._supervisor
        supervisor.settle()
        moves = self.placement.moves_to(shards)
        while self.shards < shards:
            supervisor.open()
        for done, (slot, source, target) in enumerate(moves, 1):
            part = supervisor.ask({source: ("in_slot", slot)}, anyway=True)[source]
            supervisor.change("put", {target: (part,)})
            supervisor.change("drop_slot", {source: (slot,)})
            self.placement.table[slot] = target
            yield done, len(moves)
        supervisor.ask_all("settle", anyway=True)
        while self.shards > shards:
            supervisor.close()
        for shard in range(shards):
            supervisor.snap(shard)  # so that the logs hold no moved users

    def close(self) -> None:
        """End all shards."""
        while self.shards:
            self._supervisor.close()
