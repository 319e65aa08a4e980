"""The page at `/`, and the JSON it is drawn from. The page's files hold no secrets and need no key."""

import asyncio
from importlib.resources import files
from itertools import islice
from typing import Annotated, Any

import numpy as np
from litestar import Request, Response, delete, get
from litestar.datastructures import State
from litestar.params import QueryParameter
from msgspec import Struct

from coterie.service.coordination.coordinator import Coordinator
from coterie.service.core.bandit import Bandit
from coterie.service.figures import exploring, insight
from coterie.service.figures.insight import Latest, Place, Point, Stretch, Tail
from coterie.service.http.access import ADMIN, OPEN, READ
from coterie.service.problems import Problem
from coterie.service.trial.report import TrialReport, report

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page/style.css": ("style.css", "text/css; charset=utf-8"),
    **{
        f"/page/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8")
        for name in ("app", "ask", "compare", "draw", "evaluations", "explain", "overview", "parts", "people")
    },
    "/page/icon.svg": ("icon.svg", "image/svg+xml"),
}
MOST_USERS, MOST_ITEMS = 24, 12  # of the table of who resembles whom
MOST_SEEN = 200  # items that are looked at for it
SEARCHED = 100_000  # users and items that a search looks at

Minutes = Annotated[int, QueryParameter(ge=1, le=10_080)]
Limit = Annotated[int, QueryParameter(ge=1, le=200)]
Search = Annotated[str, QueryParameter(max_length=256)]
Name = Annotated[str, QueryParameter(min_length=1, max_length=256)]


class Latency(Struct, frozen=True, rename="camel"):
    """Seconds, of the calls since the start; null where there were none."""

    p50: float | None
    p90: float | None
    p99: float | None
    calls: int


class Statistics(Struct, frozen=True, rename="camel"):
    """What has been decided and earned."""

    at: int
    policy: str
    mode: str
    exploration: float
    users: int
    items: int
    waiting: int
    log_records: int
    total: Point
    curve: list[Point]
    trial: TrialReport | None  # while users are held back or given to a challenger
    warning: str | None  # that the loop stopped exploring
    best_guess_changes: float | None  # the share of the last hour's best guesses that would be others now
    rank_latency: Latency
    commit_latency: Latency


class LatestDecision(Struct, frozen=True, rename="camel"):
    """One of the latest decisions."""

    event_id: str
    at: int
    user: str
    chosen: str
    shown: str
    choices: int
    neighbours: int | None
    reward: float | None


class Size(Struct, frozen=True, rename="camel"):
    """How many of the latest decisions rested on so many users."""

    least: int
    most: int
    decisions: int


class Decisions(Struct, frozen=True, rename="camel"):
    """The latest decisions, and the sizes of the neighbourhoods of the latest two thousand."""

    decisions: list[LatestDecision]
    sizes: list[Size]
    median: int | None
    learning: list[Stretch]  # what they earned, in stretches of equal length


class UserRow(Struct, frozen=True, rename="camel"):
    """A user in a list."""

    id: str
    decisions: int
    learned: int
    earned: float
    last_seen: int


class Users(Struct, frozen=True, rename="camel"):
    """Users, the latest seen first."""

    users: list[UserRow]
    total: int


class ItemRow(Struct, frozen=True, rename="camel"):
    """An item in a list, with what became of it in the latest decisions."""

    id: str
    shown: int
    rewarded: int
    earned: float


class Items(Struct, frozen=True, rename="camel"):
    """Items, the most shown of late first."""

    items: list[ItemRow]
    total: int


class Likeness(Struct, frozen=True, rename="camel"):
    """An item as one user sees it, and the others beside."""

    item: str
    estimate: float
    width: float
    known: bool
    neighbours: int
    others: list[str]  # alike, differs or unknown, in the order of `users`


class Resemblance(Struct, frozen=True, rename="camel"):
    """Whom a user resembles on which item."""

    user: UserRow
    first_seen: int
    users: list[str]
    items: list[Likeness]
    latest: list[LatestDecision]


class Group(Struct, frozen=True, rename="camel"):
    """Users whom an item does not tell apart."""

    estimate: float
    users: list[Place]


class Split(Struct, frozen=True, rename="camel"):
    """How an item splits the users looked at: the latest seen."""

    item: str
    looked_at: int
    unknown: int
    groups: list[Group]
    latest: ItemRow


async def latest_of(state: State) -> list[Latest]:
    """Return the latest decisions, newest first."""
    coordinator: Coordinator = state.coordinator
    if "tail" not in state:
        state["tail"], state["tail_lock"] = Tail(), asyncio.Lock()
    async with state["tail_lock"]:
        await asyncio.to_thread(state["tail"].follow, coordinator.store)
        return state["tail"].of(coordinator.bandit)  # type: ignore[no-any-return]


@get("/v1/statistics", opt=READ, operation_id="statistics")
async def statistics(state: State, minutes: Minutes = 60) -> Statistics:
    """Show what was decided and earned, against the baseline and against chance."""
    coordinator: Coordinator = state.coordinator
    bandit = coordinator.bandit
    at = max(coordinator.clock(), bandit.now)
    families = list(state.metrics.registry.collect())
    return Statistics(
        at=at,
        policy=bandit.config.policy,
        mode=bandit.config.mode,
        exploration=bandit.config.exploration,
        users=len(bandit.users),
        items=len(bandit.policies.known_items),
        waiting=bandit.remembered.open,
        log_records=bandit.position,
        total=insight.point(bandit.statistics.total),
        trial=report(bandit.trial, bandit.config),
        warning=exploring.warning(bandit.statistics, bandit.config, bandit.now),
        best_guess_changes=coordinator.background.guess_changes,
        curve=await asyncio.to_thread(insight.curve, list(bandit.statistics.minutes), at, minutes),
        rank_latency=_latency(families, "coterie_request_seconds", "/rank"),
        commit_latency=_latency(families, "coterie_commit_seconds"),
    )


def _latency(families: list[Any], name: str, route: str = "") -> Latency:
    counts: dict[float, float] = {}
    for family in families:
        for sample in family.samples if family.name == name else ():
            if sample.name == f"{name}_bucket" and sample.labels.get("route", "").endswith(route):
                bound = float(sample.labels["le"])
                counts[bound] = counts.get(bound, 0.0) + sample.value
    bounds = sorted(counts.items())
    p50, p90, p99 = (insight.quantile(bounds, share) for share in (0.5, 0.9, 0.99))
    return Latency(p50, p90, p99, int(bounds[-1][1]) if bounds else 0)


@get("/v1/decisions", opt=READ, operation_id="latest_decisions")
async def decisions(state: State, limit: Limit = 20) -> Decisions:
    """Show the latest decisions and how many users they rested on."""
    latest = await latest_of(state)
    coordinator: Coordinator = state.coordinator
    members = sorted(made.members for made in latest if made.members is not None)
    sizes, least = [], 1
    while members and least <= members[-1]:
        most = 2 * least - 1
        sizes.append(Size(least, most, sum(least <= size <= most for size in members)))
        least *= 2
    shown = [_row(made, coordinator) for made in latest[:limit] if made.user in coordinator.bandit.ids]
    learning = await asyncio.to_thread(insight.stretches, latest, coordinator.bandit)
    return Decisions(shown, sizes, members[len(members) // 2] if members else None, learning)


def _row(made: Latest, coordinator: Coordinator) -> LatestDecision:
    user = coordinator.bandit.ids[made.user]
    return LatestDecision(
        made.event, made.at, user, made.item, made.shown, made.choices, made.members, made.reward
    )


@get("/v1/users", opt=READ, operation_id="list_users")
async def list_users(state: State, search: Search = "", limit: Limit = 50) -> Users:
    """List users, the latest seen first; a search looks for a part of the id."""
    coordinator: Coordinator = state.coordinator
    return await coordinator.look(lambda: users_in(coordinator.bandit, search, limit))


def users_in(bandit: Bandit, search: str, limit: int) -> Users:
    """Return the users whose ids hold a text, the latest seen first."""
    found = []
    for number in islice(reversed(bandit.users), SEARCHED):
        name = bandit.ids.get(number)
        if name is not None and search in name:
            found.append(_user(name, bandit.users[number]))
            if len(found) == limit:
                break
    return Users(found, len(bandit.users))


def _user(name: str, user: Any) -> UserRow:
    return UserRow(name, user.decisions, user.learned, user.earned, user.last)


@delete("/v1/users", opt=ADMIN, status_code=204, operation_id="forget_user_by_any_id")
async def forget_user(state: State, id: Name) -> None:
    """Forget a user whose id cannot stand in a path, as the compatible API allows."""
    if not await state.coordinator.forget(id):
        raise Problem(404, "unknown_user", f"user {id!r} is not known")


@get("/v1/items", opt=READ, operation_id="list_items")
async def list_items(state: State, search: Search = "", limit: Limit = 50) -> Items:
    """List items, the most shown of late first; a search looks for a part of the id."""
    rows = item_rows(await latest_of(state))
    coordinator: Coordinator = state.coordinator
    return await coordinator.look(lambda: items_in(coordinator.bandit, rows, search, limit))


def items_in(bandit: Bandit, rows: dict[str, ItemRow], search: str, limit: int) -> Items:
    """Return the items whose ids hold a text, those with rows of their own first."""
    known = bandit.policies.known_items
    for name in islice(known, SEARCHED):
        rows.setdefault(name, ItemRow(name, 0, 0, 0.0))
    found = sorted((row for name, row in rows.items() if search in name), key=lambda row: -row.shown)
    return Items(found[:limit], len(known.keys() | rows.keys()))


def item_rows(latest: list[Latest]) -> dict[str, ItemRow]:
    """Return what became of each item in the latest decisions."""
    sums: dict[str, list[float]] = {}
    for made in latest:
        row = sums.setdefault(made.item, [0, 0, 0.0])
        row[0] += 1
        if made.reward is not None:
            row[1] += 1
            row[2] += made.reward
    return {name: ItemRow(name, int(row[0]), int(row[1]), row[2]) for name, row in sums.items()}


@get("/v1/resemblance", opt=READ, operation_id="resemblance")
async def resemblance(state: State, user: Name) -> Resemblance:
    """Show whom a user resembles on which item, among the users seen last."""
    latest = await latest_of(state)
    coordinator: Coordinator = state.coordinator
    return await coordinator.look(lambda: resembled(user, coordinator, latest))


def resembled(user: str, coordinator: Coordinator, latest: list[Latest]) -> Resemblance:
    """Return whom a user resembles on which item."""
    bandit = coordinator.bandit
    number = bandit.names.get(user)
    if number is None or number not in bandit.users:
        raise Problem(404, "unknown_user", f"user {user!r} is not known")
    own = [made for made in latest if made.user == number]
    others = [other for other in insight.latest_users(bandit, insight.SAMPLE) if other != number]
    seen = [
        *(made.item for made in own),
        *(made.item for made in latest),
        *islice(bandit.policies.known_items, MOST_SEEN),
    ]
    rows = rows_of([*dict.fromkeys(seen)][:MOST_SEEN], number, others, bandit, latest)
    kinds = [_kinds(mine, standing) for _, mine, _, standing in rows]
    # Those of whom most is known come first, the most alike of them at the very left.
    order = sorted(range(len(others)), key=lambda k: -sum(column[k] != "unknown" for column in kinds))
    order = order[:MOST_USERS]
    order.sort(key=lambda k: sum((column[k] == "differs") - (column[k] == "alike") for column in kinds))
    return Resemblance(
        _user(user, bandit.users[number]),
        bandit.users[number].first,
        [bandit.ids[others[k]] for k in order],
        [
            Likeness(item, mine.estimate, mine.width, mine.known, members, [column[k] for k in order])
            for (item, mine, members, _), column in zip(rows, kinds, strict=True)
        ],
        [_row(made, coordinator) for made in own[:20]],
    )


def rows_of(
    items: list[str], number: int, others: list[int], bandit: Bandit, latest: list[Latest]
) -> list[tuple[str, Place, int, list[Place]]]:
    """Return the items a user is known best on: the user's place, the neighbours, and where others stand."""
    found = [(item, insight.context_of(item, bandit, latest)) for item in items]
    rows = []
    for policy in bandit.policies.made().values():
        mine = [(item, pair[1]) for item, pair in found if pair is not None and pair[0] is policy]
        if not mine:
            continue
        _, width = insight.viewer(policy, [context for _, context in mine], [number])(number)
        best = [mine[k] for k in np.argsort(width, kind="stable")[:MOST_ITEMS].tolist()]
        contexts = [context for _, context in best]
        _, _, members = insight.look(policy, number, contexts)
        standing = insight.places(policy, contexts, [number, *others], bandit)
        for k, (own, *rest) in enumerate(standing):
            rows.append((best[k][0], own, int(members[k]), rest))
    return sorted(rows, key=lambda row: row[1].width)[:MOST_ITEMS]


def _kinds(mine: Place, standing: list[Place]) -> list[str]:
    """Return alike, differs or unknown for each of the others."""
    return [
        "unknown"
        if not (mine.known and place.known)
        else "alike"
        if insight.alike(mine, place)
        else "differs"
        for place in standing
    ]


@get("/v1/split", opt=READ, operation_id="split")
async def split(state: State, item: Name) -> Split:
    """Show how an item splits the users seen last."""
    latest = await latest_of(state)
    coordinator: Coordinator = state.coordinator
    return await coordinator.look(lambda: split_by(item, coordinator.bandit, latest))


def split_by(item: str, bandit: Bandit, latest: list[Latest]) -> Split:
    """Return how an item splits the users seen last."""
    found = insight.context_of(item, bandit, latest)
    rows = item_rows(latest)
    if found is None and item not in rows and item not in bandit.policies.known_items:
        raise Problem(404, "unknown_item", f"item {item!r} is not known, or was too long ago")
    users = insight.latest_users(bandit, insight.SAMPLE)
    standing = insight.places(found[0], [found[1]], users, bandit)[0] if found else []
    parts = [Group(group[0].estimate, group) for group in insight.groups(standing)]
    unknown = sum(not place.known for place in standing)
    return Split(item, len(users), unknown, parts, rows.get(item, ItemRow(item, 0, 0, 0.0)))


@get(list(FILES), opt=OPEN, include_in_schema=False)
async def page(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Return one of the page's own files."""
    name, kind = FILES[request.url.path]
    content = files("coterie.service.http").joinpath("page", name).read_bytes()
    return Response(content, media_type=kind, headers={"content-security-policy": POLICY})


ROUTES: list[Any] = [
    statistics,
    decisions,
    list_users,
    forget_user,
    list_items,
    resemblance,
    split,
    page,
]
