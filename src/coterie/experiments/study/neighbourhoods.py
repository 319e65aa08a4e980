"""One user's neighbours per item: the policy's estimate beside the truth."""

from collections.abc import Hashable, Iterable
from itertools import islice
from typing import NamedTuple

import numpy as np
import polars as pl

from coterie.data.datasets import Source
from coterie.data.rounds import Round
from coterie.models.actions import Action, Actions
from coterie.models.candidates import Candidates
from coterie.policies import Policy

N_ITEMS = 32
N_USERS = 60
LOOK = 1_000  # rounds searched for items


class Item(NamedTuple):
    """An item in the picture."""

    name: str
    context: Actions
    family: int


def neighbourhoods(
    policy: Policy, world: Source, rounds: Iterable[Round], trace: pl.DataFrame
) -> pl.DataFrame:
    """Return a row for each pair of an item and another user: item, family, other, found, truth.

    The user is the most frequent visitor of `trace`, named in the column `user`. Of the items in the first
    rounds, the half with the narrowest bounds of the user's own model is taken, narrowest first; for the
    others nearly all users are still neighbours. At most 32 items and 60 other users are taken, evenly.
    `found` is the policy's estimate after the run, `truth` that of the world: null for a log, and with drift.
    Other users are sorted so that similar ones are adjacent.
    """
    user, others = _users(policy, trace)
    items = _surest(policy, user, _items(world, rounds))
    found = [set(policy.neighbours(user, item.context)) for item in items]
    truth: list[set[Hashable] | None] = [None] * len(items)
    if hasattr(world, "neighbours") and not getattr(world, "drift", 0):  # truth at the start
        truth = [set(world.neighbours(user, item.context, others)) for item in items]
    known = [near if real is None else real for near, real in zip(found, truth, strict=True)]
    order = _sorted(others, [item.family for item in items], known)
    name = str(user)
    rows = [
        (name, item.name, item.family, str(other), other in near, None if real is None else other in real)
        for item, near, real in zip(items, found, truth, strict=True)
        for other in order
    ]
    columns = {"user": str, "item": str, "family": int, "other": str, "found": bool, "truth": bool}
    return pl.DataFrame(rows, schema=columns, orient="row")


def _users(policy: Policy, trace: pl.DataFrame) -> tuple[Hashable, list[Hashable]]:
    """Return the most frequent visitor who is still known, and the others."""
    visits = dict(trace["user"].value_counts().iter_rows())
    known = sorted(policy.users, key=lambda user: (-visits.get(str(user), 0), str(user)))
    user, others = known[0], known[1:]
    keep = np.unique(np.linspace(0, len(others) - 1, min(N_USERS, len(others))).round().astype(int))
    return user, [others[i] for i in keep]


def _items(world: Source, rounds: Iterable[Round]) -> dict[int, list[Item]]:
    """Return the items of the first rounds, by family."""
    families: dict[int, list[Item]] = {}
    seen: set[Hashable] = set()
    for visit in islice(rounds, LOOK):
        for context in visit.contexts:
            key = context.tobytes() if isinstance(context, np.ndarray) else _id(context)
            if key not in seen:
                seen.add(key)
                family = int(world.family(context)) if hasattr(world, "family") else 0
                name = f"item {len(seen)}" if isinstance(context, np.ndarray) else str(_id(context))
                families.setdefault(family, []).append(Item(name, context, family))
    return dict(sorted(families.items()))


def _id(context: Actions) -> Hashable:
    return context.id if isinstance(context, Action) else context


def _alone(context: Actions) -> Actions:
    """Return a list with this candidate only."""
    if isinstance(context, Action):
        return Candidates.trusted([context.id], context.features[None])
    return [context]


def _surest(policy: Policy, user: Hashable, families: dict[int, list[Item]]) -> list[Item]:
    """Return half of each family's items: those with the narrowest bounds of the user's model, in order."""
    surest = []
    for items in families.values():
        items = items[: max(2, 2 * N_ITEMS // len(families))]
        items.sort(key=lambda item: float(policy.decide(user, _alone(item.context)).width[0]))
        surest += items[: (len(items) + 1) // 2]
    return surest


def _sorted(others: list[Hashable], families: list[int], near: list[set[Hashable]]) -> list[Hashable]:
    """Sort users by how many items of the first family they are near on, then of the second, and so on."""

    def nearness(other: Hashable) -> tuple[int, ...]:
        counts = dict.fromkeys(families, 0)
        for family, members in zip(families, near, strict=True):
            counts[family] -= other in members
        return tuple(counts.values())

    return sorted(others, key=nearness)
