"""What `Hierarchical` asks of its model. It holds one of two, and never asks which.

`PlainModel` is for actions without a context: vectors, ids or both, as declared. `NamedModel` is for actions of any
form. It contains a `PlainModel`, which it asks until the first context.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from numpy.random import Generator

from coterie.arrays import Floats
from coterie.models.batches import Batch, Outcome
from coterie.models.files import Tensors
from coterie.models.hierarchy.effects import EffectPart
from coterie.models.parts import Parts

__all__ = ["EffectPart", "Exploration", "Group", "Representation", "Scored"]


class Exploration(NamedTuple):
    """How choices are drawn: see `Hierarchical`."""

    explore: float
    floor: float
    rng: Generator


class Scored(NamedTuple):
    """What is known of each candidate; all arrays are (candidates,)."""

    score: Floats
    probability: Floats  # of being chosen
    estimate: Floats
    width: Floats  # how uncertain the estimate is
    shared: Floats  # what a user without payoffs would get
    shared_width: Floats
    parts: dict[str, Floats]  # of the estimate
    members: int  # how many users' payoffs the decision uses
    groups: Floats | None = None  # the user's probability of each group


class Group(NamedTuple):
    """A group of users, as `Hierarchical.groups` returns it."""

    share: float  # of the population
    users: list[Hashable]  # those who are most likely in this group
    # Features (by position) or items, with the difference from the mean of all.
    differs: list[tuple[Hashable, float]]


class Representation(Protocol):
    """The population, the users and all effects. User None, and one who is not known, has no payoffs."""

    def read(self, contexts: Any) -> tuple[Any, Any]:
        """Check candidates; return them as a decision shows them, and in the format of the other calls."""

    def read_one(self, context: Any) -> Any:
        """Check one action, and return it as a list of one candidate in the format of the other calls."""

    def score(self, user: Hashable, candidates: Any, explore: float, floor: float) -> Scored:
        """Return what is known of each candidate. Changes nothing."""

    def contributions(self, user: Hashable, candidates: Any, k: int, most: int) -> list[EffectPart]:
        """Return the largest parts of candidate k's estimate, the largest first."""

    def learn(self, user: Hashable, one: Any, payoff: float, now: int) -> None:
        """Learn a payoff of the first candidate; `now` counts payoffs, including this one.

        Raises NumberError, and changes nothing, if a number would be too large.
        """

    def play(self, batch: Batch, exploration: Exploration, learned: int) -> tuple[Outcome, int] | None:
        """Play rounds in a compiled loop; return their outcome and the number of payoffs learned so far.

        Users and arrays of `batch` are checked, its items are not. None, and nothing is played, if there is no such
        loop for these items.
        """

    def add(self, user: Hashable) -> None:
        """Register a user. Does nothing if the user is known."""

    def drop(self, user: Hashable) -> None:
        """Forget a user. Raises UserError if unknown."""

    def set_friends(self, user: Hashable, friends: Mapping[Hashable, float]) -> None:
        """Give a user these friends, with the weights of the edges, and no others. All of them become known."""

    def friends_of(self, user: Hashable) -> dict[Hashable, float]:
        """Return a user's friends and the weights of the edges."""

    @property
    def users(self) -> Sequence[Hashable]:
        """The known users."""

    @property
    def variances(self) -> dict[str, float]:
        """The learned prior variance of each kind of effect that was seen."""

    @property
    def present_half_life(self) -> float | None:
        """After how many further payoffs of the same user a payoff counts half; None if all count the same."""

    def groups(self, most: int) -> list[Group]:
        """Return the groups of users, each with the `most` largest differences from the mean of all."""

    def tensors(self) -> Tensors:
        """Return everything as arrays."""

    def restore(self, tensors: Tensors) -> None:
        """Restore what `tensors` returned. Raises FileError, and changes nothing, if it is not consistent."""

    def parts(self) -> dict[str, Parts]:
        """Return the arrays that grow, to be copied part by part while they change; `head` has the others."""

    def head(self) -> Tensors:
        """Return the arrays that are not in `parts`."""

    def restore_parts(self, head: Tensors, parts: Mapping[str, Iterable[bytes]]) -> None:
        """Restore what `head` and all of `parts` returned."""
