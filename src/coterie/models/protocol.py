"""The one protocol: what a policy asks of the users' models, whatever represents them.

`scale` is α·√log(1+t), so a confidence bound CB is scale · spread. The four calls are also the scatter and
gather of a sharded deployment: `view` asks the owner, `gather` is a sum over users, `share` a broadcast.
"""

from collections.abc import Hashable, Sequence
from typing import Any, Final, Literal, NamedTuple, Protocol, final, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from coterie.models.files import Tensors

Floats = NDArray[np.float64]
Eligible = Literal["updated", "all"]

# Two users with equal histories reach equal estimates by different roundings; without this allowance
# α = 0 would separate them.
ROUNDING = 1e-12

# Candidates whose scores differ by less than this are tied, and the first listed wins.
TIE = 1e-9


@final
class Nobody:
    """The type of NOBODY."""


# In place of a user, for `gather`, `neighbours` and `share`: the user is elsewhere, so nobody but those known
# here is counted.
NOBODY: Final = Nobody()


class View(NamedTuple):
    """One user's own opinion of each candidate."""

    estimate: Floats  # w·x: (candidates,)
    spread: Floats  # √(xᵀM⁻¹x): (candidates,)


class Near(NamedTuple):
    """Sums over a user's neighbours, the user among them, for each candidate."""

    members: NDArray[np.int64]  # how many: (candidates,)
    estimate: Floats  # the sum of their estimates: (candidates,)
    spread: Floats  # the sum of their spreads: (candidates,)


class Seen(NamedTuple):
    """Whom a partial answer rests on."""

    users: int  # how many were looked at
    shards: int  # that answered
    of: int  # shards there are


class Models(Protocol):
    """The ridge regressions of all users: M = I + Σ x xᵀ, b = Σ y x, w = M⁻¹b."""

    seen: Seen | None  # whom the last `view` and `gather` could ask, if not everybody

    def settle(self) -> None:
        """Wait until everybody can be asked."""

    def read(self, contexts: Any) -> Any:
        """Check a candidate list and return it as the calls below take it; `[0]` is its first context."""

    def view(self, user: Hashable, contexts: Any) -> View:
        """Return the user's own estimates and spreads. A stranger has M = I and b = 0."""

    def view_many(self, users: Sequence[Hashable], contexts: Sequence[Any]) -> list[View]:
        """Do what `view` does for several users, each with their own candidates."""

    def gather(self, user: Hashable, contexts: Any, view: View, scale: float) -> Near:
        """Sum over the users j with |wᵢ·x − wⱼ·x| ≤ CBᵢ + CBⱼ, for each candidate x."""

    def gather_many(
        self, users: Sequence[Hashable], contexts: Sequence[Any], views: Sequence[View], scale: float
    ) -> list[Near]:
        """Do what `gather` does for several users, each with their own candidates."""

    def draw(
        self, user: Hashable, contexts: Any, view: View, scale: float, rng: np.random.Generator
    ) -> tuple[Near, Floats]:
        """Return what `gather` does, and the sum of wⱼ·x with each w drawn from N(wⱼ, scale²·Mⱼ⁻¹)."""

    def neighbours(self, user: Hashable, contexts: Any, view: View, scale: float) -> list[Hashable]:
        """Return the users whom `gather` counts for the first candidate."""

    def update(self, user: Hashable, context: Any, payoff: float) -> int:
        """Let one user learn, known or not, and return 1."""

    def share(
        self, user: Hashable, context: Any, payoff: float, view: View, scale: float, limit: float
    ) -> int:
        """Let every neighbour with CB < limit learn, the user always, and return how many they are."""

    def run(
        self,
        users: Sequence[Hashable],
        candidates: NDArray[np.int64],
        table: Any,
        payoffs: Floats,
        served: NDArray[np.int64],
        alpha: float,
        gamma: float,
        learned: int,
        rng: np.random.Generator | None,
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]:
        """Play checked rounds of CAB in one compiled loop: choice, kept, members, updated (all (rounds,)).

        With `rng`, candidates are scored by draws instead of bounds.
        """

    def add(self, user: Hashable) -> None:
        """Register a user who has learned nothing yet."""

    def drop(self, user: Hashable) -> None:
        """Forget a user."""

    @property
    def users(self) -> Sequence[Hashable]:
        """The known users."""

    def __contains__(self, user: Hashable) -> bool:
        """Return whether a user is known."""

    def __len__(self) -> int:
        """Return how many users are known."""

    def tensors(self) -> Tensors:
        """Return all that is known, as arrays."""

    def restore(self, tensors: Tensors) -> None:
        """Take over what `tensors` returned; nothing changes if it is not sound."""


@runtime_checkable
class Movable(Models, Protocol):
    """Models of which some users can be moved: what shards are made of."""

    def part(self, users: Sequence[Hashable]) -> Tensors:
        """Return all that is known of some users, as arrays that `put` takes."""

    def put(self, part: Tensors) -> None:
        """Take users over from other models of the same kind; they must not be known yet."""


@runtime_checkable
class AtOnce(Models, Protocol):
    """Models that are far away: one question is better than two."""

    def look_many(
        self, users: Sequence[Hashable], contexts: Sequence[Any], scale: float
    ) -> list[tuple[View, Near]]:
        """Return what `view_many` and then `gather_many` do."""
