"""What a policy asks of users' models, in small protocols.

A policy holds `UserModels`. What only some models can do is a protocol apart, checked where it is used.
`scale` is α·√log(1+t), so a confidence bound CB is scale · spread. The four calls of `Models` are also what shards
do: `view` asks the shard that has the user, `gather` is a sum over shards, and `share` goes to all of them.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, NamedTuple, Protocol, final, runtime_checkable

import numpy as np

from coterie.arrays import Floats, Ints
from coterie.models.batches import Batch, Outcome, Rule
from coterie.models.files import Tensors

# Two users with equal histories get equal estimates by different roundings; without this allowance
# α = 0 would separate them.
ROUNDING = 1e-12

# Candidates whose scores differ by less than this are tied, and the first listed wins.
TIE = 1e-9


@final
class Nobody:
    """The type of NOBODY."""


# In place of a user, for `gather`, `neighbours` and `share`: the user belongs to another shard, so only users known
# here are counted.
NOBODY: Final = Nobody()


class View(NamedTuple):
    """One user's own estimate and spread for each candidate."""

    estimate: Floats  # w·x: (candidates,)
    spread: Floats  # √(xᵀM⁻¹x): (candidates,)


class Near(NamedTuple):
    """Sums over a user's neighbours, including the user, for each candidate."""

    members: Ints  # how many: (candidates,)
    estimate: Floats  # the sum of their estimates: (candidates,)
    spread: Floats  # the sum of their spreads: (candidates,)


class Seen(NamedTuple):
    """Which part of the users an answer includes, if some shards could not be reached."""

    users: int  # included
    shards: int  # that answered
    of: int  # shards there are


class Look(NamedTuple):
    """What a decision needs to know of one user's candidates."""

    view: View
    near: Near
    seen: Seen | None = None  # None if all users are included


class Models(Protocol):
    """The ridge regressions of all users, as CAB asks them for each decision and payoff.

    M = I + Σ x xᵀ, b = Σ y x, w = M⁻¹b.
    """

    def read(self, contexts: Any) -> Any:
        """Check a candidate list and return it in the format of the other calls; `[0]` is its first context."""

    def view(self, user: Hashable, contexts: Any) -> View:
        """Return the user's own estimates and spreads. An unknown user has M = I and b = 0."""

    def gather(self, user: Hashable, contexts: Any, view: View, scale: float) -> Near:
        """Sum over the users j with |wᵢ·x − wⱼ·x| ≤ CBᵢ + CBⱼ, for each candidate x."""

    def update(self, user: Hashable, context: Any, payoff: float) -> int:
        """Update one user, known or not, and return 1."""

    def share(
        self, user: Hashable, context: Any, payoff: float, view: View, scale: float, limit: float
    ) -> int:
        """Update every neighbour with CB < limit, and always the user; return how many users were updated."""


class UserModels(Models, Protocol):
    """Models whose users can be listed, added, dropped and saved: what a policy holds."""

    def neighbours(self, user: Hashable, contexts: Any, view: View, scale: float) -> list[Hashable]:
        """Return the users that `gather` counts for the first candidate."""

    def add(self, user: Hashable) -> None:
        """Register a user without updating it."""

    def drop(self, user: Hashable) -> None:
        """Forget a user."""

    @property
    def users(self) -> Sequence[Hashable]:
        """The known users."""

    def tensors(self) -> Tensors:
        """Return the whole state as arrays."""

    def restore(self, tensors: Tensors) -> None:
        """Replace the state by what `tensors` returned; if that is not consistent, nothing changes."""


@runtime_checkable
class Drawable(Protocol):
    """Models that know the users' posteriors, for Thompson sampling."""

    def chances(
        self, user: Hashable, contexts: Any, view: View, scale: float, seed: int
    ) -> tuple[Near, Floats]:
        """Return what `gather` does, and the probability that each candidate is best.

        Best is the largest average of the neighbours' w̃ⱼ·x with each w̃ from N(wⱼ, scale²·Mⱼ⁻¹).
        """


@runtime_checkable
class Runnable(Protocol):
    """Models with a compiled loop of CAB."""

    def run(self, batch: Batch, rule: Rule, rng: np.random.Generator) -> Outcome:
        """Play the rounds of a checked batch, whose items are what `read` returned."""


@runtime_checkable
class Batched(Protocol):
    """Models that answer for several users at once, faster than one by one."""

    def look_many(self, users: Sequence[Hashable], contexts: Sequence[Any], scale: float) -> list[Look]:
        """Return what `view` and then `gather` do, for several users, each with their own candidates."""


@runtime_checkable
class Remote(Batched, Protocol):
    """Models outside this process: one call is better than two, and some may be out of reach for a while."""

    def in_turn(self, step: Callable[[Models], int]) -> int:
        """Apply `step` after all earlier ones and return what it does; 0 if it waits for models out of reach."""


@runtime_checkable
class Movable(Protocol):
    """Models whose users can be moved to other models of the same kind."""

    def part(self, users: Sequence[Hashable]) -> Tensors:
        """Return the state of some users, as arrays that `put` takes."""

    def put(self, part: Tensors) -> None:
        """Add users from other models; they must be unknown here."""


class Shardable(UserModels, Movable, Protocol):
    """Models that a shard can hold."""

    def gather_many(
        self, users: Sequence[Hashable], contexts: Sequence[Any], views: Sequence[View], scale: float
    ) -> list[Near]:
        """Do what `gather` does for several users, each with their own candidates."""

    def __contains__(self, user: Hashable) -> bool:
        """Return whether a user is known."""

    def __len__(self) -> int:
        """Return how many users are known."""
