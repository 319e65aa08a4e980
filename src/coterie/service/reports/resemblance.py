"""How users and items relate in the models: whom a user resembles on an item, and how an item splits the users."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from coterie.data.logs.records import ShownAction
from coterie.models.encoded import Encoded
from coterie.policies import Policy
from coterie.service.core.bandit import Bandit
from coterie.service.reports.latest import LoggedDecision

SAMPLE = 120  # users looked at, the latest seen
SAME = 1e-12  # tolerance of the neighbourhood test for rounding


class Place(Struct, frozen=True, rename="camel"):
    """A user's estimate for an item."""

    user: str
    estimate: float
    width: float
    known: bool  # whether anything was learned for the user here


class ItemPlaces(NamedTuple):
    """The estimates of a user and of others for an item."""

    item: str
    own: Place
    neighbours: int
    others: list[Place]


def context_of(item: str, bandit: Bandit, latest: Sequence[LoggedDecision]) -> tuple[Policy, Any] | None:
    """Return the policy and the context to look at an item with: as it was shown last, or else its id."""
    known = bandit.policies.known_items
    shown = next((made.action for made in latest if made.action.id == item), None)
    if shown is None and item not in known:
        return None
    kind, context = bandit.policies.read(shown or ShownAction(item))
    policy = bandit.policies.made.get(kind)
    if policy is None or (kind == "items" and item not in known):
        return None
    return policy, context


def look(policy: Policy, user: int, contexts: Sequence[Any]) -> tuple[Any, Any, Any]:
    """Return a user's estimates, widths and neighbourhood sizes, each (contexts,)."""
    if isinstance(contexts[0], Encoded):  # each in the context in which it was shown
        told = [policy.explain(user, one) for one in contexts]
        estimate, width, members = (
            np.concatenate([getattr(one, name) for one in told]) for name in ("estimate", "width", "members")
        )
        return estimate, width, members
    decision = policy.explain(user, _as_candidates(contexts))
    return decision.estimate, decision.width, decision.members


def _as_candidates(contexts: Sequence[Any]) -> Any:
    return np.array(contexts) if isinstance(contexts[0], np.ndarray) else list(contexts)


def alike(a: Place, b: Place) -> bool:
    """Return whether two users are neighbours: whether their confidence intervals overlap."""
    return abs(a.estimate - b.estimate) <= a.width + b.width + SAME


def likeness(own: Place, other: Place) -> str:
    """Return alike, differs or unknown."""
    if not (own.known and other.known):
        return "unknown"
    return "alike" if alike(own, other) else "differs"


def latest_users(bandit: Bandit, most: int) -> list[int]:
    """Return the users seen last."""
    found: list[int] = []
    for number in reversed(bandit.users):
        if number in bandit.ids:
            found.append(number)
            if len(found) == most:
                break
    return found


def places(
    policy: Policy, contexts: Sequence[Any], users: Sequence[int], bandit: Bandit
) -> list[list[Place]]:
    """Return the users' estimates for items: a list of users per item."""
    see = viewer(policy, contexts, users)
    _, unknown = see(-1)
    found: list[list[Place]] = [[] for _ in contexts]
    for number in users:
        estimate, width = see(number)
        known = width < unknown - SAME
        for k, column in enumerate(found):
            column.append(Place(bandit.ids[number], float(estimate[k]), float(width[k]), bool(known[k])))
    return found


def best_known(
    items: Sequence[str],
    most: int,
    number: int,
    others: Sequence[int],
    bandit: Bandit,
    latest: Sequence[LoggedDecision],
) -> list[ItemPlaces]:
    """Return the `most` items with the narrowest estimates for a user, with others' estimates for them."""
    found = [(item, context_of(item, bandit, latest)) for item in items]
    rows = []
    for policy in bandit.policies.made.values():
        mine = [(item, pair[1]) for item, pair in found if pair is not None and pair[0] is policy]
        if not mine:
            continue
        _, width = viewer(policy, [context for _, context in mine], [number])(number)
        best = [mine[k] for k in np.argsort(width, kind="stable")[:most].tolist()]
        contexts = [context for _, context in best]
        _, _, members = look(policy, number, contexts)
        standing = places(policy, contexts, [number, *others], bandit)
        for k, (own, *rest) in enumerate(standing):
            rows.append(ItemPlaces(best[k][0], own, int(members[k]), rest))
    return sorted(rows, key=lambda row: row.own.width)[:most]


def viewer(policy: Policy, contexts: Sequence[Any], users: Sequence[int]) -> Callable[[int], tuple[Any, Any]]:
    """Return a function that gives a user's estimates and widths, from the models alone where that is the same.

    A decision also computes the neighbourhoods: for 120 users that took 230 ms, and this takes 5.
    """
    models = getattr(policy, "models", None)
    if models is not None and users:
        shown = models.read(_as_candidates(contexts))
        estimate, width, _ = look(policy, users[0], contexts[:1])
        own = models.view(users[0], shown)
        scale = width[0] / own.spread[0] if own.spread[0] > 0 else 0.0

        def see(number: int) -> tuple[Any, Any]:
            view = models.view(number, shown)
            return view.estimate, scale * view.spread

        if scale > 0 and abs(own.estimate[0] - estimate[0]) < 1e-9:
            return see
    return lambda number: look(policy, number, contexts)[:2]


def groups(standing: Sequence[Place]) -> list[list[Place]]:
    """Split the users with data for an item into groups, the best payoff first.

    A group is the user with the narrowest estimate and all that user's neighbours. It shows how the item splits the
    users; decisions use each user's own neighbourhood instead.
    """
    left = sorted((place for place in standing if place.known), key=lambda place: (place.width, place.user))
    found = []
    while left:
        centre = left[0]
        found.append([place for place in left if alike(centre, place)])
        left = [place for place in left if not alike(centre, place)]
    return sorted(found, key=lambda group: -group[0].estimate)
