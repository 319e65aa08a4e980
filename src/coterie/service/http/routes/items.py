"""Items: what they earned in the latest decisions, and how each splits the users."""

from itertools import islice
from typing import Any

from litestar import get
from litestar.datastructures import State
from msgspec import Struct

from coterie.service.coordination.coordinator import Coordinator
from coterie.service.core.bandit import Bandit
from coterie.service.http.access import READ
from coterie.service.http.routes.latest import SEARCHED, Limit, Name, Search, latest_of, look_at
from coterie.service.problems import Problem
from coterie.service.reports import resemblance
from coterie.service.reports.latest import LoggedDecision
from coterie.service.reports.resemblance import Place


class ItemRow(Struct, frozen=True, rename="camel"):
    """An item in a list, with its counts in the latest decisions."""

    id: str
    shown: int
    rewarded: int
    earned: float


class Items(Struct, frozen=True, rename="camel"):
    """Items, the most shown of the latest decisions first."""

    items: list[ItemRow]
    total: int


class Group(Struct, frozen=True, rename="camel"):
    """Users for whom the item's estimates do not differ."""

    estimate: float
    users: list[Place]


class Split(Struct, frozen=True, rename="camel"):
    """How an item splits the users seen last."""

    item: str
    looked_at: int
    unknown: int
    groups: list[Group]
    latest: ItemRow


@get("/v1/items", opt=READ, operation_id="list_items")
async def list_items(state: State, search: Search = "", limit: Limit = 50) -> Items:
    """List items, the most shown of the latest decisions first; a search looks for a part of the id."""
    rows = item_rows(await latest_of(state))
    coordinator: Coordinator = state.coordinator
    return await coordinator.look(lambda: items_in(coordinator.bandit, rows, search, limit))


def items_in(bandit: Bandit, rows: dict[str, ItemRow], search: str, limit: int) -> Items:
    """Return the items whose ids contain a text, those with a row first."""
    known = bandit.policies.known_items
    for name in islice(known, SEARCHED):
        rows.setdefault(name, ItemRow(name, 0, 0, 0.0))
    found = sorted((row for name, row in rows.items() if search in name), key=lambda row: -row.shown)
    return Items(found[:limit], len(known.keys() | rows.keys()))


def item_rows(latest: list[LoggedDecision]) -> dict[str, ItemRow]:
    """Return each item's counts in the latest decisions."""
    sums: dict[str, list[float]] = {}
    for made in latest:
        row = sums.setdefault(made.action.id, [0, 0, 0.0])
        row[0] += 1
        if made.reward is not None:
            row[1] += 1
            row[2] += made.reward
    return {name: ItemRow(name, int(row[0]), int(row[1]), row[2]) for name, row in sums.items()}


@get("/v1/split", opt=READ, operation_id="split")
async def split(state: State, item: Name) -> Split:
    """Show how an item splits the users seen last."""
    return await look_at(state, split_by, item)


def split_by(item: str, bandit: Bandit, latest: list[LoggedDecision]) -> Split:
    """Return how an item splits the users seen last."""
    found = resemblance.context_of(item, bandit, latest)
    rows = item_rows(latest)
    if found is None and item not in rows and item not in bandit.policies.known_items:
        raise Problem(404, "unknown_item", f"item {item!r} is not known, or was too long ago")
    users = resemblance.latest_users(bandit, resemblance.SAMPLE)
    standing = resemblance.places(found[0], [found[1]], users, bandit)[0] if found else []
    parts = [Group(group[0].estimate, group) for group in resemblance.groups(standing)]
    unknown = sum(not place.known for place in standing)
    return Split(item, len(users), unknown, parts, rows.get(item, ItemRow(item, 0, 0, 0.0)))


ROUTES: list[Any] = [list_items, split]
