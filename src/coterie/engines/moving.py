"""Moving users between shards, slot by slot."""

from collections.abc import Iterator

from coterie.engines.placement import Placement
from coterie.engines.supervisor import Supervisor
from coterie.models.checks import check_count


def move_slots(supervisor: Supervisor, placement: Placement, shards: int) -> Iterator[tuple[int, int]]:
    """Move users until `shards` shards have equal shares; yields (slots moved, of how many).

    Other calls may come between two steps.
    """
    check_count("shards", shards)
    supervisor.settle()
    moves = placement.moves_to(shards)
    while len(supervisor) < shards:
        supervisor.open()
    for done, (slot, source, target) in enumerate(moves, 1):
        part = supervisor.ask({source: ("in_slot", slot)}, anyway=True)[source]
        supervisor.change("put", {target: (part,)})
        supervisor.change("drop_slot", {source: (slot,)})
        placement.table[slot] = target
        yield done, len(moves)
    supervisor.ask_all("settle", anyway=True)
    while len(supervisor) > shards:
        supervisor.close()
    for shard in range(shards):
        supervisor.snap(shard)  # so that the logs hold no moved users
