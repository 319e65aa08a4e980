"""User models over feature vectors, as the packed upper triangles of their inverse matrices.

For all users and candidates at once, xᵀM⁻¹x is one matrix product: M⁻¹ is kept as its upper triangle in a
row, and x becomes the row of products xₐ·x_b (a ≤ b), the off-diagonal ones doubled. A user who was never
updated has M = I and w = 0, so needs no row: such idle users are only counted.
"""

from collections.abc import Hashable, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from coterie.errors import FileError, UserError
from coterie.models.checks import check_user, read_vectors
from coterie.models.files import Tensors, pack_ids, take, unpack_ids
from coterie.models.protocol import ROUNDING, Eligible, Floats, Near, Played, View


@final
class Dense:
    """One ridge regression a user over `n_features` features."""

    def __init__(self, n_features: int, eligible: Eligible) -> None:
        self.n_features = n_features
        self.eligible = eligible
        self._upper = np.triu_indices(n_features)
        self._twice = np.where(self._upper[0] == self._upper[1], 1.0, 2.0)  # (pairs,)
        self._square = np.zeros((n_features, n_features), dtype=np.intp)  # where (a, b) lies in a packed row
        self._square[self._upper] = self._square.T[self._upper] = np.arange(len(self._twice))
        self._identity = np.eye(n_features)[self._upper]  # (pairs,)
        self._row: dict[Hashable, int] = {}  # users that were updated, and where they lie
        self._idle: dict[Hashable, None] = {}  # users that were not: known, with M = I
        self._names: list[Hashable] = []  # the user of each row
        self._inverses = np.empty((0, len(self._twice)))  # (rows or more, pairs)
        self._weights = np.empty((0, n_features))  # (rows or more, n_features)

    def read(self, contexts: Any) -> Floats:
        """Check candidates and return them as (candidates, n_features)."""
        return read_vectors(contexts, self.n_features)

    def view(self, user: Hashable, contexts: Floats) -> View:
        """Return the user's own estimates and spreads."""
        row = self._row.get(user)
        if row is None:
            return View(np.zeros(len(contexts)), np.sqrt(np.einsum("kf,kf->k", contexts, contexts)))
        squares = self._pairs(contexts) @ self._inverses[row]
        return View(contexts @ self._weights[row], np.sqrt(np.maximum(squares, 0)))

    def gather(self, user: Hashable, contexts: Floats, view: View, scale: float) -> Near:
        """Sum over each candidate's neighbours."""
        estimates, spreads, near = self._neighbourhoods(contexts, view, scale)  # (rows, candidates) each
        idle, idle_spread = self._idle_near(user, contexts, view, scale)
        return Near(
            near.sum(axis=0) + idle,
            (estimates * near).sum(axis=0),
            (spreads * near).sum(axis=0) + idle * idle_spread,
        )

    def draw(
        self, user: Hashable, contexts: Floats, view: View, scale: float, rng: np.random.Generator
    ) -> Floats:
        """Draw each neighbourhood's average estimate."""
        raise NotImplementedError

    def run(
        self, batch: Any, alpha: float, gamma: float, learned: int, rng: np.random.Generator | None = None
    ) -> Played | None:
        """Leave the batch to the policy's own loop."""
        return None

    def neighbours(self, user: Hashable, contexts: Floats, view: View, scale: float) -> list[Hashable]:
        """Return the neighbours for the first candidate."""
        _, _, near = self._neighbourhoods(contexts[:1], View(view.estimate[:1], view.spread[:1]), scale)
        found = [self._names[row] for row in np.flatnonzero(near[:, 0])]
        idle, _ = self._idle_near(user, contexts, view, scale)
        return found + (self._idle_eligible(user) if idle[0] else [])

    def update(self, user: Hashable, context: Floats, payoff: float) -> int:
        """Let one user learn."""
        self._learn(np.array([self._activate(user)]), context, payoff)
        return 1

    def share(
        self, user: Hashable, context: Floats, payoff: float, view: View, scale: float, limit: float
    ) -> int:
        """Let the confident neighbours learn."""
        contexts = context[None, :]
        _, spreads, near = self._neighbourhoods(contexts, view, scale)
        sure = near[:, 0] & (scale * spreads[:, 0] < limit)
        if user in self._row:
            sure[self._row[user]] = True  # whatever the rounding
        rows = np.flatnonzero(sure).tolist()
        idle, idle_spread = self._idle_near(user, contexts, view, scale)
        if idle[0] and scale * idle_spread[0] < limit:
            rows += [self._activate(name) for name in self._idle_eligible(user)]
        self._learn(np.array(rows), context, payoff)
        return len(rows)

    def add(self, user: Hashable) -> None:
        """Register a user."""
        check_user(user)
        if user not in self._row:
            self._idle.setdefault(user)

    def drop(self, user: Hashable) -> None:
        """Forget a user; the last row moves into the gap."""
        check_user(user)
        if user in self._idle:
            del self._idle[user]
            return
        if user not in self._row:
            raise UserError(f"user {user!r} is not known, so cannot be dropped")
        row, last = self._row.pop(user), len(self._names) - 1
        name = self._names.pop()
        if row != last:
            self._names[row], self._row[name] = name, row
            self._inverses[row], self._weights[row] = self._inverses[last], self._weights[last]
        self._inverses[last], self._weights[last] = 0.0, 0.0

    @property
    def users(self) -> Sequence[Hashable]:
        """The known users: the updated ones first."""
        return [*self._names, *self._idle]

    def tensors(self) -> Tensors:
        """Return everything as arrays."""
        rows = len(self._names)
        return {
            "updated": pack_ids(self._names),
            "idle": pack_ids(self._idle),
            "inverses": self._inverses[:rows],
            "weights": self._weights[:rows],
        }

    def restore(self, tensors: Tensors) -> None:
        """Take over saved arrays."""
        names, idle = unpack_ids(tensors, "updated"), unpack_ids(tensors, "idle")
        if not set(names).isdisjoint(idle):
            raise FileError("a user in the model file is both updated and idle")
        inverses = take(tensors, "inverses", "f", (len(names), len(self._twice)))
        weights = take(tensors, "weights", "f", (len(names), self.n_features))
        self._names, self._idle = names, dict.fromkeys(idle)
        self._row = {name: row for row, name in enumerate(names)}
        self._inverses, self._weights = inverses.astype(np.float64), weights.astype(np.float64)

    def _pairs(self, contexts: Floats) -> Floats:
        """Return the products xₐ·x_b of each context, as packed inverses take them: (candidates, pairs)."""
        return contexts[:, self._upper[0]] * contexts[:, self._upper[1]] * self._twice

    def _neighbourhoods(
        self, contexts: Floats, view: View, scale: float
    ) -> tuple[Floats, Floats, NDArray[np.bool_]]:
        rows = len(self._names)
        estimates = self._weights[:rows] @ contexts.T  # (rows, candidates)
        spreads = np.sqrt(np.maximum(self._inverses[:rows] @ self._pairs(contexts).T, 0))
        near = np.abs(estimates - view.estimate) <= scale * (spreads + view.spread) + ROUNDING
        return estimates, spreads, near

    def _idle_eligible(self, user: Hashable) -> list[Hashable]:
        """Return the users without a row who may be neighbours of `user`: at least `user`, if one of them."""
        own = [] if user in self._row or (user in self._idle and self.eligible == "all") else [user]
        return ([*self._idle] if self.eligible == "all" else []) + own

    def _idle_near(
        self, user: Hashable, contexts: Floats, view: View, scale: float
    ) -> tuple[NDArray[np.int64], Floats]:
        """Return how many idle users are neighbours for each candidate, and the spread they all have."""
        stranger = user not in self._row and (user not in self._idle or self.eligible == "updated")
        count = (len(self._idle) if self.eligible == "all" else 0) + stranger
        spread = np.sqrt(np.einsum("kf,kf->k", contexts, contexts))
        near = np.abs(view.estimate) <= scale * (spread + view.spread) + ROUNDING
        return count * near.astype(np.int64), spread

    def _activate(self, user: Hashable) -> int:
        """Return the user's row, made if there is none yet."""
        if user in self._row:
            return self._row[user]
        self._idle.pop(user, None)
        row = self._row[user] = len(self._names)
        self._names.append(user)
        if row == len(self._inverses):
            more = max(16, row)
            self._inverses = np.concatenate([self._inverses, np.zeros((more, self._inverses.shape[1]))])
            self._weights = np.concatenate([self._weights, np.zeros((more, self.n_features))])
        self._inverses[row], self._weights[row] = self._identity, 0.0
        return row

    def _learn(self, rows: NDArray[np.int64], context: Floats, payoff: float) -> None:
        # Rank one (Sherman–Morrison): O(d²) a user, where inverting again would be O(d³).
        inverses = self._inverses[rows]
        v = inverses[:, self._square] @ context  # M⁻¹x: (rows, n_features)
        s = 1 + v @ context
        miss = (payoff - self._weights[rows] @ context) / s
        self._inverses[rows] = inverses - v[:, self._upper[0]] * v[:, self._upper[1]] / s[:, None]
        self._weights[rows] += v * miss[:, None]
