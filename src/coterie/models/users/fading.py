"""User models whose old payoffs count less: M = I + Σ λ^age·x xᵀ and b = Σ λ^age·y x.

The age of a payoff counts the later payoffs of the same user, whether the user learned them alone or with neighbours.
Payoffs of one age on one item are rare, so the classes of equal users of `one_hot` would have one member each. Here
every updated user has a row of ridge regressions, and every question reads all rows. Over vectors an update is O(d³),
because the prior does not fade; M stays well-conditioned, because its largest eigenvalue is at most 1 + 1/(1 − λ).
"""

from collections.abc import Hashable
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from coterie.arrays import Floats
from coterie.models._kernels.users import fading as kernels
from coterie.models._kernels.users.cab import Cab, play_cab
from coterie.models.actions import Actions, ActionsLike
from coterie.models.batches import Batch, Outcome, Rule
from coterie.models.files import Tensors
from coterie.models.protocol import Near, View
from coterie.models.rows.chunks import Game, Items
from coterie.models.rows.ridge_rows import RidgeRows
from coterie.models.users.user_rows import RowModels, UserRows


@final
class Fading(RowModels):
    """One ridge regression per user. `keep` is λ: each payoff multiplies the weight of older ones by it."""

    def __init__(self, ridges: RidgeRows, keep: float) -> None:
        self.ridges = ridges
        self.keep = keep
        self._known = UserRows()

    def read(self, contexts: ActionsLike) -> Actions:
        """Check candidates and return them as the rows take them."""
        return self.ridges.read(contexts)

    def view(self, user: Hashable, contexts: Actions) -> View:
        """Return the user's own estimates and spreads."""
        return self.ridges.view(self._known.row(user), self.ridges.numbers(contexts))

    def gather(self, user: Hashable, contexts: Actions, view: View, scale: float) -> Near:
        """Sum over each candidate's neighbours."""
        return self._with_user(user, view, kernels.gather(*self._question(contexts), *view, scale))

    def chances(
        self, user: Hashable, contexts: Actions, view: View, scale: float, seed: int
    ) -> tuple[Near, Floats]:
        """Return what `gather` does, and the probability that each candidate's average draw is the largest."""
        alone = self._known.lacks_row(user)
        near, chances = kernels.chances(*self._question(contexts), *view, scale, alone, seed)
        return Near(near[0].astype(np.int64), near[1], near[2]), chances

    def neighbours(self, user: Hashable, contexts: Actions, view: View, scale: float) -> list[Hashable]:
        """Return the neighbours for the first candidate."""
        first = View(view.estimate[:1], view.spread[:1])
        near, _ = kernels.near_rows(*self._question(contexts[:1]), *first, scale)
        return self._named(user, near)

    def update(self, user: Hashable, context: Actions, payoff: float) -> int:
        """Update one user."""
        item = self.ridges.learnable([context])
        self._learn(user, item, payoff)
        return 1

    def share(
        self, user: Hashable, context: Actions, payoff: float, view: View, scale: float, limit: float
    ) -> int:
        """Update the certain neighbours."""
        item = self.ridges.learnable([context])
        self.ridges.fit(0, self.ridges.entries + self._known.n_rows)
        learners: int = kernels.share(
            self.ridges.rows, self._known.n_rows, self._known.row(user), item, np.zeros(1, np.int64), payoff,
            *view, scale, limit, self.keep,
        )  # fmt: skip
        if self._known.lacks_row(user):
            self._learn(user, item, payoff)
            learners += 1
        return learners

    def run(self, batch: Batch, rule: Rule, rng: np.random.Generator) -> Outcome:
        """Play checked rounds of CAB in one compiled loop."""
        table, candidates = batch.items, batch.candidates
        if self.ridges.one_hot and len(set(table)) < len(table):  # an item has one number
            once = {item: k for k, item in enumerate(dict.fromkeys(table))}
            candidates = np.array([once[item] for item in table], dtype=np.int64)[candidates]
            table = list(once)
        items, own = Items(self.ridges, table), np.empty((3, candidates.shape[1]))

        def loop(game: Game) -> None:
            room = int(game.so_far[2]) + 1
            self.ridges.fit(room, self.ridges.entries + room)
            play_cab(Cab(kernels.FadingModels(self.ridges.rows, self.keep), rule, own), game, rng)

        checked = batch._replace(candidates=candidates)
        outcome = self._known.play(checked, items.numbers, items.named, rule.learned, loop)
        items.settle()
        return outcome

    def drop(self, user: Hashable) -> None:
        """Forget a user; the last row moves into the gap."""
        row = self._known.drop(user)
        if row >= 0:
            self.ridges.replace(row)

    def tensors(self) -> Tensors:
        """Return all users."""
        rows, names = self._known.pack(self.users)
        return {**names, **self.ridges.tensors("model", rows)}

    def restore(self, tensors: Tensors) -> None:
        """Replace all users."""
        known = UserRows()
        names, idle = known.unpack(tensors)
        self.ridges.rows = self.ridges.restore("model", tensors, len(names))
        known.put(names, idle)
        self._known = known

    def _question(self, contexts: Actions) -> tuple[Any, int, NDArray[Any], NDArray[np.int64]]:
        """Return the rows, how many there are, and the candidates in the format of kernels."""
        return self.ridges.rows, self._known.n_rows, self.ridges.numbers(contexts), np.arange(len(contexts))

    def _learn(self, user: Hashable, item: NDArray[Any], payoff: float) -> None:
        """Update a user, who gets a row if there is none yet."""
        row = self._known.row(user)
        if row < 0:
            row = self.ridges.take()
            self._known.give_row(user)
        self.ridges.fade(row, self.keep)
        self.ridges.update(row, item, payoff)
