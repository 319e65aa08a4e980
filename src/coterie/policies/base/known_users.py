"""What LinUCB, VW and Random share: a set of known users, separate from what is learned."""

from collections.abc import Hashable, Sequence

from numpy.random import Generator

from coterie.errors import UserError
from coterie.models.checks import check_user
from coterie.policies.base.policy import Policy


class KnownUsers(Policy):
    """Registers and forgets users in `_known`."""

    rng: Generator
    _known: dict[Hashable, None]

    def add(self, user: Hashable) -> None:
        check_user(user)
        self._known.setdefault(user)

    def drop(self, user: Hashable) -> None:
        check_user(user)
        if user not in self._known:
            raise UserError(f"user {user!r} is not known, so cannot be dropped")
        del self._known[user]

    @property
    def users(self) -> Sequence[Hashable]:
        return list(self._known)
