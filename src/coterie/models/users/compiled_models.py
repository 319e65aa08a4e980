"""Models with a row for each updated user, whose questions and updates are compiled loops over the rows.

The compiled loop of CAB calls the same loops.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Any

import numpy as np

from coterie.arrays import Array, Floats
from coterie.models._kernels.users.cab import Cab, play_cab
from coterie.models.actions import Actions, ActionsLike
from coterie.models.batches import Batch, Outcome, Rule
from coterie.models.protocol import Near, View
from coterie.models.rows.chunks import Game
from coterie.models.users.user_rows import RowModels, UserRows


class CompiledModels(RowModels, ABC):
    """What `Dense` and `Fading` share."""

    _kernels: Any  # the module of the loops

    def __init__(self) -> None:
        self._known = UserRows()

    @abstractmethod
    def read(self, contexts: ActionsLike) -> Actions:
        """Check candidates and return them in the format of the other calls."""

    @abstractmethod
    def _state(self) -> Any:
        """Return the models in the format of the loops."""

    @abstractmethod
    def _numbers(self, contexts: Actions) -> Array:
        """Return candidates in the format of the loops."""

    @abstractmethod
    def _learnable(self, context: Actions) -> Array:
        """Return a context to be learned in this format, as one candidate."""

    @abstractmethod
    def _reserve(self, users: int, payoffs: int) -> None:
        """Make room for this many users with a row, and one more payoff of so many of them."""

    def view(self, user: Hashable, contexts: Actions) -> View:
        """Return the user's own estimates and spreads."""
        n = len(contexts)
        found = View(np.empty(n), np.empty(n))
        self._kernels.view(
            self._state(), self._known.row(user), self._numbers(contexts), np.arange(n), *found
        )
        return found

    def gather(self, user: Hashable, contexts: Actions, view: View, scale: float) -> Near:
        """Sum over each candidate's neighbours."""
        return self._with_user(user, view, self._sums(contexts, view, scale))

    def _sums(self, contexts: Actions, view: View, scale: float) -> Floats:
        """Sum members, estimates and spreads over the neighbours with a row: (3, candidates)."""
        which = np.arange(len(contexts))
        sums: Floats = self._kernels.gather(
            self._state(), self._known.n_rows, self._numbers(contexts), which, *view, scale
        )
        return sums

    def chances(
        self, user: Hashable, contexts: Actions, view: View, scale: float, seed: int
    ) -> tuple[Near, Floats]:
        """Return what `gather` does, and the probability that each candidate's average draw is the largest."""
        alone, which = self._known.lacks_row(user), np.arange(len(contexts))
        near, likely = self._kernels.chances(
            self._state(), self._known.n_rows, self._numbers(contexts), which, *view, scale, alone, seed
        )
        return Near(near[0].astype(np.int64), near[1], near[2]), likely

    def neighbours(self, user: Hashable, contexts: Actions, view: View, scale: float) -> list[Hashable]:
        """Return the neighbours for the first candidate."""
        own = float(view.estimate[0]), float(view.spread[0])
        near = self._kernels.near_rows(
            self._state(), self._known.n_rows, self._numbers(contexts), 0, *own, scale
        )
        return self._named(user, near)

    def update(self, user: Hashable, context: Actions, payoff: float) -> int:
        """Update one user."""
        items, n, is_new = self._learnable(context), self._known.n_rows, self._known.lacks_row(user)
        self._reserve(n + is_new, 1)
        self._kernels.learn_one(self._state(), n, n if is_new else self._known.row(user), items, 0, payoff)
        if is_new:
            self._known.give_row(user)
        return 1

    def share(
        self, user: Hashable, context: Actions, payoff: float, view: View, scale: float, limit: float
    ) -> int:
        """Update the certain neighbours."""
        items, n, row = self._learnable(context), self._known.n_rows, self._known.row(user)
        self._reserve(n, n)
        own = float(view.estimate[0]), float(view.spread[0])
        learners: int = self._kernels.learn_together(
            self._state(), n, row, items, 0, payoff, *own, scale, limit
        )
        return learners + (self.update(user, context, payoff) if row < 0 else 0)

    def play(self, batch: Batch, items: Any, named: Any, rule: Rule, rng: np.random.Generator) -> Outcome:
        """Play checked rounds of CAB in one compiled loop; `items` are those of the batch in its format."""
        own = np.empty((3, batch.candidates.shape[1]))

        def loop(game: Game) -> None:
            room = int(game.so_far[2]) + 1
            self._reserve(room, room)
            play_cab(Cab(self._state(), rule, own), game, rng)

        return self._known.play(batch, items, named, rule.learned, loop)
