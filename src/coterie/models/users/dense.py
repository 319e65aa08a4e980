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
from coterie.models._kernels.users.dense import Panels
from coterie.models._kernels.users.simd import PANEL
from coterie.models.actions import ActionsLike
from coterie.models.batches import Batch, Outcome, Rule
from coterie.models.checks import read_vectors
from coterie.models.files import Tensors, take
from coterie.models.protocol import Look, View
from coterie.models.ranges import PRODUCT, ROUNDED, are_covariances
from coterie.models.rows.ridges import packing
from coterie.models.threads import in_chunks
from coterie.models.users.compiled_models import CompiledModels


@final
class Dense(CompiledModels):
    """One ridge regression per user over `n_features` features."""

    _kernels = kernels

    def __init__(self, n_features: int) -> None:
        super().__init__()
        self.n_features = n_features
        self._panels = empty_panels(0, n_features)

    def read(self, contexts: ActionsLike) -> Floats:
        """Check candidates and return them as (candidates, n_features), contiguous in memory."""
        found = read_vectors(contexts, self.n_features)
        return found if found.flags.carray else np.require(found, requirements=["C", "W"])

    def _state(self) -> Panels:
        return self._panels

    def _numbers(self, contexts: Floats) -> Floats:
        return contexts

    def _learnable(self, context: Floats) -> Floats:
        return context[None]

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
        return self.play(batch, batch.items, np.zeros(2, dtype=np.int64), rule, rng)

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
        rows, which = self._known.n_rows, np.arange(len(contexts))
        n_panels = -(-rows // PANEL)
        asked = self._panels, rows, contexts, which, *view, scale
        if n_panels <= kernels.CHUNK:
            sums: Floats = kernels.gather(*asked)
            return sums

        def chunk(first: int, last: int) -> Floats:
            part: Floats = kernels.gather_part(*asked, first, last)
            return part

        return sum(in_chunks(chunk, n_panels, kernels.CHUNK), start=np.zeros((3, len(contexts))))

    def _reserve(self, users: int, payoffs: int = 0) -> None:
        """Make room for this many rows, at least doubling."""
        have, need = len(self._panels.weights), -(-users // PANEL)
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
