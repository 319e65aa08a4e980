"""Friends of users: what may be said of them, and what is known."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from coterie.data.logs.interactions import SHARED
from coterie.service.core.policy_config import takes_friends
from coterie.service.problems import Problem

if TYPE_CHECKING:
    from coterie.service.core.bandit import Bandit

MOST = 1_000  # friends of a user


def friends_of(bandit: "Bandit", user: str) -> dict[str, float]:
    """Return a user's friends, with the weights of the edges."""
    number = bandit.names.get(user, -1)
    found = _knowing(bandit).policies.friends_of(number)
    return {bandit.ids[friend]: weight for friend, weight in found.items() if friend in bandit.ids}


def check(bandit: "Bandit", user: str, friends: Mapping[str, float]) -> None:
    """Raise if a user cannot have these friends."""
    knowing = _knowing(bandit)
    if not takes_friends(knowing.config):
        message = (
            f"the policy {bandit.config.policy!r} does not use friends; configure one that does: hierarchical"
        )
        raise Problem(422, "no_friends", message)
    if SHARED in (user, *friends):
        message = f"{SHARED!r} stands for visitors who are not known, and has no friends; leave it out"
        raise Problem(422, "invalid_friends", message)
    if user in friends:
        raise Problem(
            422, "invalid_friends", f"user {user!r} is in the list of the own friends; leave it out"
        )
    if len(friends) > MOST:
        raise Problem(422, "too_many_friends", f"{len(friends)} friends, expected at most {MOST}")
    if len(friends) >= bandit.config.max_users:
        message = f"{len(friends)} friends, but at most {bandit.config.max_users} users are kept (max-users)"
        raise Problem(422, "too_many_friends", message)
    old = friends_of(bandit, user)
    for name in friends:
        number = bandit.names.get(name)
        if number is not None and name not in old and len(knowing.policies.friends_of(number)) >= MOST:
            message = f"user {name!r} has {MOST} friends already, the most that a user can have; leave it out"
            raise Problem(422, "too_many_friends", message)


def _knowing(bandit: "Bandit") -> "Bandit":
    """Return the bandit whose policy uses friends: the challenger, if only that one does."""
    challenger = bandit.challenger
    return bandit if challenger is None or takes_friends(bandit.config) else challenger
