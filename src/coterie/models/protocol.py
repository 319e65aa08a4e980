"""The one protocol: what a policy asks of the users' models, whatever represents them.

`scale` is α·√log(1+t), so a confidence bound CB is scale · spread. The four calls are also the scatter and
gather of a sharded deployment: `view` asks the owner, `gather` is a sum over users, `share` a broadcast.
"""

from collections.abc import Hashable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

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


class View(NamedTuple):
    """One user's own opinion of each candidate."""

    estimate: Floats  # w·x: (candidates,)
    spread: Floats  # √(xᵀM⁻¹x): (candidates,)


class Near(NamedTuple):
    """Sums over a user's neighbours, the user among them, for each candidate."""

    members: NDArray[np.int64]  # how many: (candidates,)
    estimate: Floats  # the sum of their estimates: (candidates,)
    spread: Floats  # the sum of their spreads: (candidates,)


class Played(NamedTuple):
    """What happened in each round of a batch that models played by themselves: all (rounds,)."""

    choice: NDArray[np.int64]  # the position picked
    kept: NDArray[np.bool_]  # whether the round was learned from
    members: NDArray[np.int64]  # how many users the decision rested on
    updated: NDArray[np.int64]  # how many users' models were updated


class Models(Protocol):
    """The ridge regressions of all users: M = I + Σ x xᵀ, b = Σ y x, w = M⁻¹b."""

    def read(self, contexts: Any) -> Any:
        """Check a candidate list and return it as the calls below take it; `[0]` is its first context."""

    def view(self, user: Hashable, contexts: Any) -> View:
        """Return the user's own estimates and spreads. A stranger has M = I and b = 0."""

    def gather(self, user: Hashable, contexts: Any, view: View, scale: float) -> Near:
        """Sum over the users j with |wᵢ·x − wⱼ·x| ≤ CBᵢ + CBⱼ, for each candidate x."""

    def draw(
        self, user: Hashable, contexts: Any, view: View, scale: float, rng: np.random.Generator
    ) -> Floats:
        """Draw the average of wⱼ·x over the same users, each w from its posterior, for each candidate x."""

    def neighbours(self, user: Hashable, contexts: Any, view: View, scale: float) -> list[Hashable]:
        """Return the users whom `gather` counts for the first candidate."""

    def update(self, user: Hashable, context: Any, payoff: float) -> int:
        """Let one user learn, known or not, and return 1."""

    def share(
        self, user: Hashable, context: Any, payoff: float, view: View, scale: float, limit: float
    ) -> int:
        """Let every neighbour with CB < limit learn, the user always, and return how many they are."""

    def run(
        self, batch: Any, alpha: float, gamma: float, learned: int, rng: np.random.Generator | None = None
    ) -> Played | None:
        """Play a batch as CAB does, compiled, or return None if there is no such loop.

        With `rng`, candidates are ranked by `draw`, else by estimate and width.
        """

    def add(self, user: Hashable) -> None:
        """Register a user who has learned nothing yet."""

    def drop(self, user: Hashable) -> None:
        """Forget a user."""

    @property
    def users(self) -> Sequence[Hashable]:
        """The known users."""

    def tensors(self) -> Tensors:
        """Return all that is known, as arrays."""

    def restore(self, tensors: Tensors) -> None:
        """Take over what `tensors` returned; nothing changes if it is not sound."""
