"""What policies share that number their users: CLUB, SCLUB, DynUCB, COFIBA, DCCB, BASS and LOCB."""

from abc import abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from numpy.random import Generator

from coterie.arrays import Ints
from coterie.models import RidgeRows, make_rows
from coterie.models.actions import ActionLike, Actions, ActionsLike
from coterie.models.checks import check_count, read_payoff
from coterie.models.files import Tensors, pack_ids, unpack_ids
from coterie.models.roster import Roster
from coterie.models.rows.ridges import Ridges
from coterie.policies.base.decision import Decision, decide_with
from coterie.policies.base.parameters import Alpha, check_alpha, scale_at
from coterie.policies.base.policy import Policy


class NumberedUsers(Policy):
    """Checks the input and finds the user's row; the methods below say what is done with it. Row -1 is unknown."""

    finds_neighbours = True
    keeps_order: ClassVar[bool] = (
        False  # when a user leaves, later rows move up, else the last takes the place
    )
    alpha: Alpha = 0.0  # of policies whose bound is another
    user_rows: RidgeRows
    _roster: Roster

    def _read(self, contexts: ActionsLike) -> Actions:
        """Check candidates and return them in the format of decisions."""
        return self.user_rows.read(contexts)

    @abstractmethod
    def _decide(self, user: Hashable, row: int, contexts: Actions, scale: float) -> Decision:
        """Choose among checked `contexts` for the user of `row`."""

    @abstractmethod
    def _learn(self, row: int, contexts: Actions, payoff: float) -> None:
        """Learn the payoff of the first of checked `contexts`, for a known user."""

    @abstractmethod
    def _arrive(self, row: int) -> None:
        """Give a new user's row what an untrained user has. The row is the last one."""

    @abstractmethod
    def _leave(self, row: int) -> None:
        """Forget what is known of a row; the roster is without its user already."""

    @abstractmethod
    def _tensors(self, n: int) -> Tensors:
        """Return what was learned, of n users, as arrays."""

    @abstractmethod
    def _restore(self, tensors: Tensors, n: int) -> None:
        """Restore what `_tensors` returned, if it is consistent."""

    @abstractmethod
    def _deciding_together(self, row: int, contexts: Actions) -> Iterable[int]:
        """Return the known users whose models decide for the user of `row`, on the first of `contexts`."""

    def decide(self, user: Hashable, contexts: ActionsLike) -> Decision:
        contexts = self._read(contexts)
        return self._decide(user, self._roster.row(user), contexts, scale_at(self.alpha, self.learned))

    def learn(self, user: Hashable, context: ActionLike, payoff: float) -> int:
        contexts = self._read([context])
        payoff = read_payoff(payoff)
        scale_at(self.alpha, self.learned)  # raises for a bad alpha before anything changes
        self.add(user)
        self._learn(self._roster.row(user), contexts, payoff)
        self.learned += 1
        return 1

    def neighbours(self, user: Hashable, context: ActionLike) -> list[Hashable]:
        """Return the users whose models decide for `user` on `context` now, including `user`."""
        contexts = self._read([context])
        row = self._roster.row(user)
        names = [self._roster.names[r] for r in self._deciding_together(row, contexts)]
        return names if row >= 0 else [*names, user]

    def add(self, user: Hashable) -> None:
        if user not in self._roster:
            self._arrive(self._roster.join(user))

    def drop(self, user: Hashable) -> None:
        leave = self._roster.leave_in_order if self.keeps_order else self._roster.leave
        self._leave(leave(user))

    @property
    def users(self) -> Sequence[Hashable]:
        return list(self._roster.names)

    def tensors(self) -> Tensors:
        return {"users": pack_ids(self._roster.names), **self._tensors(len(self._roster))}

    def restore(self, tensors: Tensors) -> None:
        names = unpack_ids(tensors, "users")
        self._restore(tensors, len(names))
        self._roster = Roster(names)


@dataclass(kw_only=True, eq=False, repr=False)
class VectorUsers(NumberedUsers):
    """Has a row of ridge regression over vectors per user."""

    n_features: int
    user_rows: Ridges = field(init=False)

    def __post_init__(self) -> None:
        self.n_features: int = check_count("n_features", self.n_features)
        self.user_rows = Ridges(self.n_features)
        self._roster = Roster()


@dataclass(kw_only=True, eq=False, repr=False)
class RowUsers(NumberedUsers):
    """Has a row of ridge regression per user."""

    n_features: int | None = None
    one_hot: bool = False
    alpha: Alpha = 0.1

    def __post_init__(self) -> None:
        self.alpha = check_alpha(self.alpha)
        self.user_rows = make_rows(self.n_features, self.one_hot)
        self._roster = Roster()


class PooledRows(RowUsers):
    """Decides by the pooled row of several users."""

    thompson: bool = False
    rng: Generator

    @abstractmethod
    def _pool(self, row: int) -> tuple[RidgeRows, int, int]:
        """Return the rows, and the one of them, that decide for a user, and how many users that is."""

    @abstractmethod
    def _update(self, row: int, items: Ints, payoff: float) -> None:
        """Learn a payoff; `items` has one entry, in the format of rows."""

    def _decide(self, user: Hashable, row: int, contexts: Actions, scale: float) -> Decision:
        """Score each candidate by the pool's estimate and bound, or by its probability of being best."""
        items = self.user_rows.numbers(contexts)
        pools, pool, members = self._pool(row)
        own, near = self.user_rows.view(row, items), pools.view(pool, items)
        chances = pools.chances(pool, items, scale, self.learned) if self.thompson else None
        return decide_with(user, contexts, own, near, scale, members, chances)

    def _learn(self, row: int, contexts: Actions, payoff: float) -> None:
        self._update(row, self.user_rows.learnable(contexts), payoff)
