"""What a policy asks of users' models, in small protocols.

A policy holds `UserModels`. What only some models can do is a protocol apart, checked where it is used.
`scale` is α·√log(1+t), so a confidence bound CB is scale · spread.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from coterie.arrays import Floats, Ints
from coterie.models.actions import Actions, ActionsLike
from coterie.models.batches import Batch, Outcome, Rule
from coterie.models.files import Tensors

# Two users with equal histories get equal estimates by different roundings; without this allowance
# α = 0 would separate them.
ROUNDING = 1e-12

# Candidates whose scores differ by less than this are tied, and the first listed wins.
TIE = 1e-9


class View(NamedTuple):
    """One user's own estimate and spread for each candidate."""

    estimate: Floats  # w·x: (candidates,)
    spread: Floats  # √(xᵀM⁻¹x): (candidates,)


class Near(NamedTuple):
    """Sums over a user's neighbours, including the user, for each candidate."""

    members: Ints  # how many: (candidates,)
    estimate: Floats  # the sum of their estimates: (candidates,)
    spread: Floats  # the sum of their spreads: (candidates,)


class Look(NamedTuple):
    """What a decision needs to know of one user's candidates."""

    view: View
    near: Near


class Models(Protocol):
    """The ridge regressions of all users, as CAB asks them for each decision and payoff.

    M = I + Σ x xᵀ, b = Σ y x, w = M⁻¹b.
    """

    def read(self, contexts: ActionsLike) -> Actions:
        """Check a candidate list and return it in the format of the other calls; `[0]` is its first context."""

    def view(self, user: Hashable, contexts: Actions) -> View:
        """Return the user's own estimates and spreads. An unknown user has M = I and b = 0."""

    def gather(self, user: Hashable, contexts: Actions, view: View, scale: float) -> Near:
        """Sum over the users j with |wᵢ·x − wⱼ·x| ≤ CBᵢ + CBⱼ, for each candidate x."""

    def update(self, user: Hashable, context: Actions, payoff: float) -> int:
        """Update one user, known or not, and return 1."""

    def share(
        self, user: Hashable, context: Actions, payoff: float, view: View, scale: float, limit: float
    ) -> int:
        """Update every neighbour with CB < limit, and always the user; return how many users were updated."""


class UserModels(Models, Protocol):
    """Models whose users can be listed, added, dropped and saved: what a policy holds."""

    def neighbours(self, user: Hashable, contexts: Actions, view: View, scale: float) -> list[Hashable]:
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
        self, user: Hashable, contexts: Actions, view: View, scale: float, seed: int
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

    def look_many(self, users: Sequence[Hashable], contexts: Sequence[Actions], scale: float) -> list[Look]:
        """Return what `view` and then `gather` do, for several users, each with their own candidates."""
