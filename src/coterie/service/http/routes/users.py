"""Users: what is known of them, whom they resemble, and how they are forgotten."""

from itertools import islice
from typing import Annotated, Any

from litestar import delete, get, put
from litestar.datastructures import State
from litestar.params import RawBody
from msgspec import Meta, Struct

from coterie.service.coordination.coordinator import Coordinator
from coterie.service.core.bandit import Bandit
from coterie.service.http.access import ADMIN, READ
from coterie.service.http.bodies import read
from coterie.service.http.routes.latest import (
    SEARCHED,
    LatestDecision,
    Limit,
    Name,
    Search,
    latest_answer,
    look_at,
)
from coterie.service.ids import Id, PathId, decode_id
from coterie.service.problems import Problem
from coterie.service.reports import resemblance as figures
from coterie.service.reports.latest import LoggedDecision

MOST_USERS, MOST_ITEMS = 24, 12  # in the table of resemblance
MOST_SEEN = 200  # items that are looked at for it
Weight = Annotated[float, Meta(ge=1e-6, le=1e6)]  # of an edge


class UserAnswer(Struct, frozen=True, rename="camel"):
    """What is known of a user."""

    id: str
    first_seen: int
    last_seen: int
    decisions: int
    learned: int
    earned: float


class FriendsBody(Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Ids, or ids with the weights of the edges."""

    friends: list[Id] | dict[Id, Weight]


class FriendsAnswer(Struct, frozen=True, rename="camel"):
    """A user's friends, with the weights of the edges."""

    id: str
    friends: dict[str, float]


class UserRow(Struct, frozen=True, rename="camel"):
    """A user in a list."""

    id: str
    decisions: int
    learned: int
    earned: float
    last_seen: int


class Likeness(Struct, frozen=True, rename="camel"):
    """A user's estimate for an item, and whether others are alike."""

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


class Users(Struct, frozen=True, rename="camel"):
    """Users, the latest seen first."""

    users: list[UserRow]
    total: int


@get("/v1/users/{user_id:str}", opt=READ, operation_id="show_user")
async def show_user(user_id: PathId, state: State) -> UserAnswer:
    """Show what is known of a user."""
    name = decode_id(user_id)
    _, user = find_user(name, state.coordinator.bandit)
    return UserAnswer(name, user.first, user.last, user.decisions, user.learned, user.earned)


def find_user(name: str, bandit: Bandit) -> tuple[int, Any]:
    """Return a user's number and counts, or answer 404."""
    number = bandit.names.get(name)
    if number is None or number not in bandit.users:
        raise _unknown(name)
    return number, bandit.users[number]


@get("/v1/users/{user_id:str}/friends", opt=READ, operation_id="show_friends")
async def show_friends(user_id: PathId, state: State) -> FriendsAnswer:
    """Show a user's friends, with the weights of the edges."""
    name, coordinator = decode_id(user_id), state.coordinator
    find_user(name, coordinator.bandit)
    return FriendsAnswer(name, await coordinator.look(lambda: coordinator.bandit.friends_of(name)))


@put("/v1/users/{user_id:str}/friends", opt=ADMIN, operation_id="change_friends")
async def change_friends(user_id: PathId, body: RawBody, state: State) -> FriendsAnswer:
    """Make these the friends of a user, and no others. Friends are mutual; how much they say is learned."""
    name, coordinator, sent = decode_id(user_id), state.coordinator, read(body, FriendsBody).friends
    friends = sent if isinstance(sent, dict) else dict.fromkeys(sent, 1.0)
    await coordinator.befriend(name, friends)
    return FriendsAnswer(name, await coordinator.look(lambda: coordinator.bandit.friends_of(name)))


@delete("/v1/users/{user_id:str}", opt=ADMIN, status_code=204, operation_id="forget_user")
async def forget_user(user_id: PathId, state: State) -> None:
    """Forget a user, in the model at once and in the log."""
    await _forget(decode_id(user_id), state)


@delete("/v1/users", opt=ADMIN, status_code=204, operation_id="forget_user_by_any_id")
async def forget_user_by_any_id(state: State, id: Name) -> None:
    """Forget a user whose id cannot be in a path, as the compatible API allows."""
    await _forget(id, state)


async def _forget(name: str, state: State) -> None:
    if not await state.coordinator.forget(name):
        raise _unknown(name)


def _unknown(name: str) -> Problem:
    return Problem(404, "unknown_user", f"user {name!r} is not known")


@get("/v1/users", opt=READ, operation_id="list_users")
async def list_users(state: State, search: Search = "", limit: Limit = 50) -> Users:
    """List users, the latest seen first; a search looks for a part of the id."""
    coordinator: Coordinator = state.coordinator
    return await coordinator.look(lambda: users_in(coordinator.bandit, search, limit))


def users_in(bandit: Bandit, search: str, limit: int) -> Users:
    """Return the users whose ids contain a text, the latest seen first."""
    found = []
    for number in islice(reversed(bandit.users), SEARCHED):
        name = bandit.ids.get(number)
        if name is not None and search in name:
            found.append(_row(name, bandit.users[number]))
            if len(found) == limit:
                break
    return Users(found, len(bandit.users))


def _row(name: str, user: Any) -> UserRow:
    return UserRow(name, user.decisions, user.learned, user.earned, user.last)


@get("/v1/resemblance", opt=READ, operation_id="resemblance")
async def resemblance(state: State, user: Name) -> Resemblance:
    """Show whom a user resembles on which item, among the users seen last."""
    return await look_at(state, resembled, user)


def resembled(user: str, bandit: Bandit, latest: list[LoggedDecision]) -> Resemblance:
    """Return whom a user resembles on which item."""
    number, known = find_user(user, bandit)
    own = [made for made in latest if made.user == number]
    others = [other for other in figures.latest_users(bandit, figures.SAMPLE) if other != number]
    seen = [made.action.id for made in (*own, *latest)]
    seen += islice(bandit.policies.known_items, MOST_SEEN)
    items = [*dict.fromkeys(seen)][:MOST_SEEN]
    rows = figures.best_known(items, MOST_ITEMS, number, others, bandit, latest)
    kinds = [[figures.likeness(row.own, other) for other in row.others] for row in rows]
    # The users with the most known estimates, those most alike at the left.
    order = sorted(range(len(others)), key=lambda k: -sum(column[k] != "unknown" for column in kinds))
    order = order[:MOST_USERS]
    order.sort(key=lambda k: sum((column[k] == "differs") - (column[k] == "alike") for column in kinds))
    return Resemblance(
        _row(user, known),
        known.first,
        [bandit.ids[others[k]] for k in order],
        [
            Likeness(item, mine.estimate, mine.width, mine.known, members, [column[k] for k in order])
            for (item, mine, members, _), column in zip(rows, kinds, strict=True)
        ],
        [latest_answer(made, bandit) for made in own[:20]],
    )


ROUTES: list[Any] = [
    show_user, list_users, forget_user, forget_user_by_any_id, resemblance, show_friends, change_friends,
]  # fmt: skip
BODIES: dict[str, type[Struct]] = {"change_friends": FriendsBody}
