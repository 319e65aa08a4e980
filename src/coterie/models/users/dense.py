"""User models over feature vectors, as the packed upper triangles of their inverse matrices.

For all users and candidates at once, xᵀM⁻¹x is one matrix product: each M⁻¹ is stored as its upper triangle in a
row, and x becomes the row of products xₐ·x_b (a ≤ b), the off-diagonal ones doubled. An idle user, who was never
updated, has M = I and w = 0 and no row.

Rounding errors would add up over many updates, so each update stores what it lost and the next adds it back (see the
kernels).
"""

from collections.abc import Hashable, Sequence
from typing import final

import numpy as np

from coterie.arrays import Floats
from coterie.errors import FileError
from coterie.models._kernels.users import dense as kernels
from coterie.models._kernels.users import panels
from coterie.models._kernels.users.cab import Cab, play_cab
from coterie.models._kernels.users.panels import Panels
from coterie.models._kernels.users.simd import PANEL
from coterie.models.actions import ActionsLike
from coterie.models.batches import Batch, Outcome, Rule
from coterie.models.checks import read_vectors
from coterie.models.files import Tensors, take
from coterie.models.protocol import Look, Near, View
from coterie.models.ranges import PRODUCT, ROUNDED, are_covariances
from coterie.models.rows.chunks import Game
from coterie.models.rows.ridges import packing
from coterie.models.threads import in_chunks
from coterie.models.users.user_rows import RowModels, UserRows


@final
class Dense(RowModels):
    """One ridge regression per user over `n_features` features."""

    def __init__(self, n_features: int) -> None:
        self.n_features = n_features
        self._known = UserRows()
        self._panels = empty_panels(0, n_features)

    def read(self, contexts: ActionsLike) -> Floats:
        """Check candidates and return them as (candidates, n_features)."""
        return read_vectors(contexts, self.n_features)

    def view(self, user: Hashable, contexts: Floats) -> View:
        """Return the user's own estimates and spreads."""
        row = self._known.row(user)
        estimate, spread = np.zeros(len(contexts)), np.empty(len(contexts))
        if row < 0:
            panels.norms(contexts, spread)
        else:
            panels.view(self._panels.inverses, self._panels.weights, row, contexts, estimate, spread)
        return View(estimate, spread)

    def gather(self, user: Hashable, contexts: Floats, view: View, scale: float) -> Near:
        """Sum over each candidate's neighbours."""
        return self._with_user(user, view, self._sums(contexts, view, scale))

    def look_many(self, users: Sequence[Hashable], contexts: Sequence[Floats], scale: float) -> list[Look]:
        """Do what `view` and `gather` do for several users, with one product for all."""
        views = [self.view(*one) for one in zip(users, contexts, strict=True)]
        everyone = View(*(np.concatenate(part) for part in zip(*views, strict=True)))
        near = self._sums(np.concatenate(contexts), everyone, scale)
        answers, first = [], 0
        for user, rows, view in zip(users, contexts, views, strict=True):
            answers.append(Look(view, self._with_user(user, view, near[:, first : first + len(rows)])))
            first += len(rows)
        return answers

    def chances(
        self, user: Hashable, contexts: Floats, view: View, scale: float, seed: int
    ) -> tuple[Near, Floats]:
        """Return what `gather` does, and the probability that each candidate's average draw is the largest."""
        alone = self._known.lacks_row(user)
        near, chances = kernels.chances(
            *self._panels[:2], self._known.n_rows, contexts, *view, scale, alone, seed
        )
        return Near(near[0].astype(np.int64), near[1], near[2]), chances

    def neighbours(self, user: Hashable, contexts: Floats, view: View, scale: float) -> list[Hashable]:
        """Return the neighbours for the first candidate."""
        near = kernels.near_rows(
            *self._panels[:2], self._known.n_rows, contexts[0], view.estimate[0], view.spread[0], scale
        )
        return self._named(user, near)

    def update(self, user: Hashable, context: Floats, payoff: float) -> int:
        """Update one user."""
        row = self._known.row(user)
        if row < 0:
            row = self._open_row(user)
        panels.learn_row(*self._panels, row, context, payoff)
        return 1

    def share(
        self, user: Hashable, context: Floats, payoff: float, view: View, scale: float, limit: float
    ) -> int:
        """Update the certain neighbours."""
        near = (view.estimate[0], view.spread[0], scale, limit)
        row = self._known.row(user)
        learners: int = kernels.share(*self._panels, self._known.n_rows, row, context, payoff, *near)
        return learners + (self.update(user, context, payoff) if self._known.lacks_row(user) else 0)

    def drop(self, user: Hashable) -> None:
        """Forget a user; the last row moves into the gap."""
        row = self._known.drop(user)
        if row >= 0:
            last = self._known.n_rows
            for array in self._panels:
                array[row // PANEL, ..., row % PANEL] = array[last // PANEL, ..., last % PANEL]
                array[last // PANEL, ..., last % PANEL] = 0

    def run(self, batch: Batch, rule: Rule, rng: np.random.Generator) -> Outcome:
        """Play checked rounds of CAB in one compiled loop."""
        c = batch.candidates.shape[1]
        own, contexts = np.empty((3, c)), np.empty((c, self.n_features))

        def loop(game: Game) -> None:
            self._reserve(int(game.so_far[2]) + 1)
            play_cab(Cab(kernels.DenseModels(self._panels, contexts), rule, own), game, rng)

        return self._known.play(batch, batch.items, np.zeros(2, dtype=np.int64), rule.learned, loop)

    def part(self, users: Sequence[Hashable]) -> Tensors:
        """Return some users as arrays, with a row for each updated user."""
        rows, names = self._known.pack(users)
        arrays = {
            name: array[rows // PANEL, ..., rows % PANEL] for name, array in self._panels._asdict().items()
        }
        return {**names, **arrays}

    def put(self, part: Tensors) -> None:
        """Add users with their rows."""
        names, idle = self._known.unpack(part)
        arrays = {
            name: take(part, name, array.dtype.kind, (len(names), *array.shape[1:-1]))
            for name, array in self._panels._asdict().items()
        }
        first = self._known.n_rows
        self._reserve(first + len(names))
        rows = np.arange(first, first + len(names))
        for name, array in self._panels._asdict().items():
            array[rows // PANEL, ..., rows % PANEL] = arrays[name]
        self._known.put(names, idle)

    def tensors(self) -> Tensors:
        """Return all users."""
        return self.part(self.users)

    def restore(self, tensors: Tensors) -> None:
        """Replace all users."""
        fresh = Dense(self.n_features)
        fresh.put(tensors)
        rows = fresh._known.n_rows
        inverses = take(tensors, "inverses", "f", (rows, self.n_features * (self.n_features + 1) // 2))
        weights = take(tensors, "weights", "f", (rows, self.n_features))
        residues = (np.abs(tensors[name]).max(initial=0.0) for name in ("lost", "missed"))
        if (
            not are_covariances(inverses[:, packing(self.n_features)], 1 + ROUNDED)
            or not (np.abs(weights) <= PRODUCT).all()
            or max(residues) > ROUNDED
        ):
            raise FileError("the users in the model file have models that no payoffs can give")
        self._panels, self._known = fresh._panels, fresh._known

    def _sums(self, contexts: Floats, view: View, scale: float) -> Floats:
        """Sum members, estimates and spreads over the neighbours with a row: (3, candidates)."""
        rows = self._known.n_rows
        inverses, weights = self._panels.inverses, self._panels.weights
        n_panels = -(-rows // PANEL)
        if n_panels <= kernels.CHUNK:
            sums: Floats = kernels.gather_all(inverses, weights, rows, contexts, *view, scale)
            return sums

        def chunk(first: int, last: int) -> Floats:
            part = np.zeros((3, len(contexts)))
            kernels.gather(inverses, weights, rows, contexts, *view, scale, first, last, part)
            return part

        return sum(in_chunks(chunk, n_panels, kernels.CHUNK), start=np.zeros((3, len(contexts))))

    def _open_row(self, user: Hashable) -> int:
        """Give a user a row with M = I and w = 0, and return it."""
        self._reserve(self._known.n_rows + 1)
        row = self._known.give_row(user)
        panels.open_row(*self._panels, row)
        return row

    def _reserve(self, rows: int) -> None:
        """Make room for this many rows, at least doubling."""
        have, need = len(self._panels.weights), -(-rows // PANEL)
        if need > have:
            wider = empty_panels(max(need, 2 * have), self.n_features)
            for name, old in self._panels._asdict().items():
                getattr(wider, name)[:have] = old
            self._panels = wider


def empty_panels(n_panels: int, n_features: int) -> Panels:
    """Return panels of zeros."""
    pairs = n_features * (n_features + 1) // 2
    wide, narrow = np.zeros((n_panels, pairs, PANEL)), np.zeros((n_panels, n_features, PANEL))
    return Panels(wide, narrow, wide.astype(np.float32), narrow.astype(np.float32))
