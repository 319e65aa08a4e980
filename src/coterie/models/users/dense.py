"""User models over feature vectors, as the packed upper triangles of their inverse matrices.

For all users and candidates at once, xᵀM⁻¹x is one matrix product: each M⁻¹ is stored as its upper triangle in a
row, and x becomes the row of products xₐ·x_b (a ≤ b), the off-diagonal ones doubled. An idle user, who was never
updated, has M = I and w = 0 and no row.

Rounding errors would add up over many updates, so each update stores what it lost and the next adds it back (see the
kernels). Without `compensate` they add up, and a user takes a third less memory.

With `sample`, rows are in random order: a new row changes places with a row drawn by a hash of how many rows came
before. So the first `sample` rows are a uniform sample of the updated users, and they are contiguous. The place of a
dropped user is taken by the last row, which keeps the order random.
"""

import hashlib
from collections.abc import Hashable, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from coterie.arrays import Floats
from coterie.errors import FileError
from coterie.models._kernels.users import dense as kernels
from coterie.models._kernels.users import panels
from coterie.models._kernels.users.panels import Panels
from coterie.models._kernels.users.simd import PANEL
from coterie.models.batches import Batch, Outcome, Rule, as_rounds, outcome_of
from coterie.models.checks import read_vectors
from coterie.models.files import Tensors, take
from coterie.models.protocol import Eligible, Look, Near, View
from coterie.models.ranges import PRODUCT, ROUNDED, are_covariances
from coterie.models.rows.ridges import packing
from coterie.models.threads import in_chunks
from coterie.models.users.user_rows import UserRows


@final
class Dense:
    """One ridge regression per user over `n_features` features.

    With `sample`, only that many updated users, drawn at random, may be neighbours of others.
    """

    def __init__(
        self, n_features: int, eligible: Eligible, compensate: bool = True, sample: int | None = None
    ) -> None:
        self.n_features = n_features
        self.eligible = eligible
        self.compensate = compensate
        self.sample = sample
        self._joined = 0  # how many users ever got a row, if there is a sample
        self._known = UserRows(eligible)
        self._panels = empty_panels(0, n_features, compensate)

    def read(self, contexts: Any) -> Floats:
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
        members, estimate, spread = self._sums(contexts, view, scale)
        if self._is_outside(user):
            members, estimate, spread = members + 1, estimate + view.estimate, spread + view.spread
        if self._known.count_without_row(user):
            idle, bare = self._idle_near(user, contexts, view, scale)
            members, spread = members + idle, spread + idle * bare
        return Near(members.astype(np.int64), estimate, spread)

    def gather_many(
        self, users: Sequence[Hashable], contexts: Sequence[Floats], views: Sequence[View], scale: float
    ) -> list[Near]:
        """Do what `gather` does, for several users in one product."""
        everyone = View(*(np.concatenate(part) for part in zip(*views, strict=True)))
        near = self._sums(np.concatenate(contexts), everyone, scale)
        answers, first = [], 0
        for user, rows, view in zip(users, contexts, views, strict=True):
            part = near[:, first : first + len(rows)]
            if self._is_outside(user):
                part = part + np.stack([np.ones(len(rows)), *view])
            idle, spread = self._idle_near(user, rows, view, scale)
            answers.append(Near(part[0].astype(np.int64) + idle, part[1], part[2] + idle * spread))
            first += len(rows)
        return answers

    def look_many(self, users: Sequence[Hashable], contexts: Sequence[Floats], scale: float) -> list[Look]:
        """Do what `view` and `gather` do for several users, with one product for all."""
        views = [self.view(*one) for one in zip(users, contexts, strict=True)]
        near = self.gather_many(users, contexts, views, scale)
        return [Look(*one) for one in zip(views, near, strict=True)]

    def chances(
        self, user: Hashable, contexts: Floats, view: View, scale: float, seed: int
    ) -> tuple[Near, Floats]:
        """Return what `gather` does, and the probability that each candidate's average draw is the largest."""
        idle = self._known.count_without_row(user)
        near, chances = kernels.chances(
            *self._panels[:2], self._known.n_rows, contexts, *view, scale, float(idle), seed
        )
        return Near(near[0].astype(np.int64), near[1], near[2]), chances

    def neighbours(self, user: Hashable, contexts: Floats, view: View, scale: float) -> list[Hashable]:
        """Return the neighbours for the first candidate."""
        near = kernels.near_rows(
            *self._panels[:2], self._reach, contexts[0], view.estimate[0], view.spread[0], scale
        )
        found = [self._known.names[row] for row in np.flatnonzero(near)]
        found += [user] * self._is_outside(user)
        idle, _ = self._idle_near(user, contexts[:1], View(view.estimate[:1], view.spread[:1]), scale)
        return found + (self._known.without_row(user) if idle[0] else [])

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
        learners: int = kernels.share(*self._panels, self._reach, row, context, payoff, *near)
        if self._is_outside(user):
            learners += self.update(user, context, payoff)
        idle, spread = self._idle_near(user, context[None, :], view, scale)
        if idle[0] and scale * spread[0] < limit:
            learners += sum(self.update(name, context, payoff) for name in self._known.without_row(user))
        return learners

    def add(self, user: Hashable) -> None:
        """Register a user."""
        self._known.add(user)

    def drop(self, user: Hashable) -> None:
        """Forget a user; the last row moves into the gap."""
        row = self._known.drop(user)
        if row >= 0:
            last = self._known.n_rows
            for array in self._panels:
                array[row // PANEL, ..., row % PANEL] = array[last // PANEL, ..., last % PANEL]
                array[last // PANEL, ..., last % PANEL] = 0

    @property
    def users(self) -> Sequence[Hashable]:
        """The known users: the updated ones first."""
        return self._known.users

    def run(self, batch: Batch, rule: Rule, rng: np.random.Generator) -> Outcome:
        """Play checked rounds of CAB in one compiled loop."""
        numbered = self._known.number(batch.users)
        self._reserve(self._known.n_rows + int((numbered.row_of < 0).sum()))
        rounds = as_rounds(batch, numbered.who)
        users = numbered.row_of, numbered.known, self.eligible == "all"
        rows, arrays = self._known.n_rows, tuple(self._panels)
        kernels.run_cab(arrays, rows, users, batch.items, tuple(rounds), tuple(rule), rng)
        self._known.give_rows(numbered)
        return outcome_of(rounds)

    def __contains__(self, user: Hashable) -> bool:
        """Return whether a user is known."""
        return user in self._known

    def __len__(self) -> int:
        """Return how many users are known."""
        return len(self._known)

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
        found = self.part(self.users)
        return found if self.sample is None else found | {"joined": np.array([self._joined])}

    def restore(self, tensors: Tensors) -> None:
        """Replace all users."""
        fresh = Dense(self.n_features, self.eligible, self.compensate, self.sample)
        fresh.put(tensors)
        rows = fresh._known.n_rows
        joined = rows if self.sample is None else int(take(tensors, "joined", "i", (1,))[0])
        if joined < rows:
            raise FileError(f"the model file counts {joined} users who joined, but has {rows}")
        inverses = take(tensors, "inverses", "f", (rows, self.n_features * (self.n_features + 1) // 2))
        weights = take(tensors, "weights", "f", (rows, self.n_features))
        residues = (np.abs(tensors[name]).max(initial=0.0) for name in ("lost", "missed"))
        if (
            not are_covariances(inverses[:, packing(self.n_features)], 1 + ROUNDED)
            or not (np.abs(weights) <= PRODUCT).all()
            or max(residues) > ROUNDED
        ):
            raise FileError("the users in the model file have models that no payoffs can give")
        self._panels, self._known, self._joined = fresh._panels, fresh._known, joined

    def _sums(self, contexts: Floats, view: View, scale: float) -> Floats:
        """Sum members, estimates and spreads over the neighbours within reach: (3, candidates)."""
        rows = self._reach
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

    @property
    def _reach(self) -> int:
        """How many rows, from the first on, may be neighbours of others: all, or the sample."""
        rows = self._known.n_rows
        return rows if self.sample is None else min(self.sample, rows)

    def _is_outside(self, user: Hashable) -> bool:
        """Return whether a user's row is outside the sample, so that it counts only in its own neighbourhood."""
        return self.sample is not None and self._known.row(user) >= self.sample

    def _idle_near(
        self, user: Hashable, contexts: Floats, view: View, scale: float
    ) -> tuple[NDArray[np.int64], Floats]:
        """Return how many users without a row are neighbours for each candidate, and their spread."""
        spread = np.empty(len(contexts))
        panels.norms(contexts, spread)
        return self._known.near_without_row(user, spread, view, scale), spread

    def _open_row(self, user: Hashable) -> int:
        """Give a user a row with M = I and w = 0, and return it."""
        self._reserve(self._known.n_rows + 1)
        row = self._known.give_row(user)
        panels.open_row(*self._panels, row)
        return row if self.sample is None else self._shuffle(row)

    def _shuffle(self, last: int) -> int:
        """Exchange the last row with one drawn from all rows, including itself; return its new place."""
        self._joined += 1
        row = place_of(self._joined, last + 1)
        if row != last:
            for array in self._panels:
                here, there = array[row // PANEL, ..., row % PANEL], array[last // PANEL, ..., last % PANEL]
                here[:], there[:] = there.copy(), here.copy()
            self._known.swap(row, last)
        return row

    def _reserve(self, rows: int) -> None:
        """Make room for this many rows, at least doubling."""
        have, need = len(self._panels.weights), -(-rows // PANEL)
        if need > have:
            wider = empty_panels(max(need, 2 * have), self.n_features, self.compensate)
            for name, old in self._panels._asdict().items():
                getattr(wider, name)[:have] = old
            self._panels = wider


def empty_panels(n_panels: int, n_features: int, compensate: bool) -> Panels:
    """Return panels of zeros."""
    pairs = n_features * (n_features + 1) // 2
    wide, narrow = np.zeros((n_panels, pairs, PANEL)), np.zeros((n_panels, n_features, PANEL))
    lengths = (pairs, n_features) if compensate else (0, 0)
    return Panels(wide, narrow, *(np.zeros((n_panels, length, PANEL), np.float32) for length in lengths))


def place_of(joined: int, rows: int) -> int:
    """Return the row, of `rows`, for the `joined`-th user to come: the same on every machine."""
    return int.from_bytes(hashlib.blake2b(str(joined).encode(), digest_size=8).digest()) % rows
