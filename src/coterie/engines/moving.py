"""Moving users between shards, slot by slot."""

from collections.abc import Iterator

from coterie.engines.keeper import Keeper
from coterie.engines.placement import Placement
from coterie.models.checks import check_count


def move_slots(keeper: Keeper, placement: Placement, shards: int) -> Iterator[tuple[int, int]]:
    """Move users until `shards` shards share them evenly; yields (slots moved, of how many).

    Between two steps everything else works as always.
    """
    check_count("shards", shards)
    keeper.settle()
    moves = placement.moves_to(shards)
    while len(keeper) < shards:
        keeper.open()
    for done, (slot, source, target) in enumerate(moves, 1):
        part = keeper.ask({source: ("in_slot", slot)}, anyway=True)[source]
        keeper.change("put", {target: (part,)})
        keeper.change("drop_slot", {source: (slot,)})
        placement.table[slot] = target
        yield done, len(moves)
    keeper.ask_all("settle", anyway=True)
    while len(keeper) > shards:
        keeper.close()
    for shard in range(shards):
        keeper.snap(shard)  # so that nobody's models stay in the log
