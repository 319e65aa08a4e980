"""What may be said of users' friends."""

from collections.abc import Callable, Mapping

from coterie.data.logs.interactions import SHARED
from coterie.data.logs.rules import Config
from coterie.service.core.policy_config import takes_friends
from coterie.service.problems import Problem

MOST = 1_000  # friends of a user


def check_friends(
    user: str, friends: Mapping[str, float], config: Config, friends_of: Callable[[str], Mapping[str, float]]
) -> None:
    """Raise if a user cannot have these friends. `friends_of` says who the friends of a user are."""
    if not takes_friends(config):
        message = f"the policy {config.policy!r} does not use friends; configure one that does: hierarchical"
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
    if len(friends) >= config.max_users:
        message = f"{len(friends)} friends, but at most {config.max_users} users are kept (max-users)"
        raise Problem(422, "too_many_friends", message)
    old = friends_of(user)
    for name in friends:
        if name not in old and len(friends_of(name)) >= MOST:
            message = f"user {name!r} has {MOST} friends already, the most that a user can have; leave it out"
            raise Problem(422, "too_many_friends", message)
