"""BASS: users share payoffs until their confidence ellipsoids are apart (Cherkaoui, Barlier, Colin, 2025).

paper            here
i                user
A_i, b_i, θ_i    a row of user_rows: A_i = I + Σ x xᵀ, b_i = Σ y x, θ_i = A_i⁻¹b_i
ε_i              _reach[i] = S + R·√(2·log(1/δ) + log det A_i)
R, S, δ          noise, size, delta

After each payoff of i, the edge to j is cut if the ellipsoids (θ − θ_i)ᵀA_i(θ − θ_i) ≤ ε_i of both have no point in
common. That is so if, with λ and v the eigenvalues of A_j/ε_j's view of A_i⁻¹ε_i and θ_i − θ_j in its eigenvectors,

    K(s) = 1 − Σ v²·s(1 − s)/(1 + s(λ − 1)) < 0        for some s in (0, 1); K is convex

(Gilitschenski and Hanebeck, 2012). A user decides with the pooled payoffs of the component, by the bound
α·√(xᵀA⁻¹x·log(1 + t)).

Written from the authors' public code (bandpy, class LBC: that it is the paper's BASS is inferred). There the reach of
an ellipsoid is ε, not ε². All users are there from the start; here they come with their first payoff, with an edge to
everybody, and decide with everybody before.
"""

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import final

import numpy as np

from coterie.arrays import Bools, Floats, Ints
from coterie.errors import FileError, ParameterError
from coterie.models.actions import Actions
from coterie.models.checks import check_number
from coterie.models.files import Tensors, take
from coterie.policies.base.decision import Decision, decide_with
from coterie.policies.base.parameters import Alpha, check_alpha
from coterie.policies.clustering.numbered_users import VectorUsers

HALVINGS = 40  # of the interval that holds the minimum of K


@final
@dataclass(kw_only=True, eq=False, repr=False)
class BASS(VectorUsers):
    """Decides with all users whose confidence ellipsoids touch this user's, or that of another who decides along.

    noise, size, delta
        The standard deviation of payoffs, the largest norm of users' weights, and the probability that an ellipsoid
        does not hold the weights: they decide how far users must be apart.

    n_features and alpha are as in every `Policy`. Raises ParameterError if a number is out of range.

    >>> policy = BASS(n_features=2)
    >>> policy.learn_many(["ann"] * 40, [[1.0, 0.0], [0.0, 1.0]] * 20, [1, 0] * 20)
    40
    >>> policy.choose("bob", [[0.0, 1.0], [1.0, 0.0]])
    1
    """

    name = "bass"
    reference = "Cherkaoui, Barlier, Colin 2025: Adaptive sample sharing for multi-agent linear bandits"
    tuned = {"noise": (0.1, 0.3, 1.0), "size": (0.1, 1.0)}  # noqa: RUF012 (never changed)

    alpha: Alpha = 0.1
    noise: float = 1.0
    size: float = 1.0
    delta: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        self.alpha = check_alpha(self.alpha)
        self.noise, self.size = check_number("noise", self.noise), check_number("size", self.size)
        self.delta = check_number("delta", self.delta)
        if not 0 < self.delta <= 1:
            raise ParameterError(f"delta is {self.delta!r}, expected a probability in (0, 1]")
        self._reach = np.zeros(0)  # with room for more users, as below
        self._cut = np.zeros((0, 0), dtype=np.bool_)  # between two users: whether their edge is cut
        self._component = np.zeros(0, dtype=np.int64)

    def _measure(self, row: int) -> None:
        """Compute the reach of a user's ellipsoid."""
        [product] = self.user_rows.products([row])
        bits = max(0.0, 2 * math.log(1 / self.delta) + float(np.linalg.slogdet(product)[1]))
        self._reach[row] = self.size + self.noise * math.sqrt(bits)

    def _rows(self, row: int) -> Ints:
        """Return the component of a row: for an unknown user, everybody."""
        here = self._component
        return np.flatnonzero(here == here[row]) if row >= 0 else np.arange(len(here))

    def _decide(self, user: Hashable, row: int, contexts: Actions, scale: float) -> Decision:
        """Score each candidate by the component's estimate and bound."""
        rows, items = self._rows(row), self.user_rows.numbers(contexts)
        own, near = self.user_rows.view(row, items), self.user_rows.pooled(rows, items)
        return decide_with(user, contexts, own, near, scale, len(rows) + (row < 0))

    def _deciding_together(self, row: int, contexts: Actions) -> Iterable[int]:
        """Return the component: the same for every context."""
        return map(int, self._rows(row))

    def _learn(self, row: int, contexts: Actions, payoff: float) -> None:
        """Update the user, and cut the edges to users whose ellipsoids are apart from the user's."""
        self.user_rows.update(row, self.user_rows.learnable(contexts), payoff)
        self._measure(row)
        n = len(self._roster)
        linked = np.flatnonzero(~self._cut[row, :n] & (np.arange(n) != row))
        apart = linked[self._apart(row, linked)]
        if len(apart):
            self._cut[row, apart] = self._cut[apart, row] = True
            self._connect(n)

    def _connect(self, n: int) -> None:
        """Find the components of n users."""
        linked, label = ~self._cut[:n, :n], np.full(n, -1, dtype=np.int64)
        for row in range(n):
            found = np.array([row]) if label[row] < 0 else np.empty(0, dtype=np.int64)
            while len(found):
                label[found] = row
                found = np.flatnonzero(linked[found].any(axis=0) & (label < 0))
        self._component = label

    def _apart(self, row: int, others: Ints) -> Bools:
        """Return for each of the other users whether the ellipsoids have no point in common."""
        weights = self.user_rows.rows.weight
        gap, [own] = weights[others] - weights[row], self.user_rows.products([row])
        found = np.zeros(len(others), dtype=np.bool_)
        # If one holds the centre of the other they are not apart; that is quick to see, and so nearly always.
        far = ((gap @ own) * gap).sum(axis=1) > self._reach[row]
        products, reach = self.user_rows.products(others[far]), self._reach[others[far]]
        outside = np.einsum("nd,nde,ne->n", gap[far], products, gap[far]) > reach
        far[far] = outside
        if not far.any():
            return found
        root = np.linalg.cholesky(products[outside] / reach[outside, None, None])
        values, vectors = np.linalg.eigh(
            root.transpose(0, 2, 1) @ np.linalg.inv(own) * self._reach[row] @ root
        )
        found[far] = _least(values, np.einsum("nd,nde->ne", gap[far], root @ vectors) ** 2) < 0
        return found

    def _arrive(self, row: int) -> None:
        """Connect a user with everybody."""
        self.user_rows.take()
        if row == len(self._reach):
            more = max(16, row)
            self._reach, self._cut = np.pad(self._reach, (0, more)), np.pad(self._cut, (0, more))
        self._cut[row] = self._cut[:, row] = False
        self._measure(row)
        self._component = np.zeros(row + 1, dtype=np.int64)  # the newcomer is connected to everybody

    def _leave(self, row: int) -> None:
        """Forget a user's edges and payoffs."""
        self.user_rows.replace(row)
        for kept in (self._reach, self._cut, self._cut.T):
            kept[row] = kept[len(self._roster)]
        self._connect(len(self._roster))

    def _tensors(self, n: int) -> Tensors:
        """Return all that was learned, as arrays."""
        return {
            "cut": np.argwhere(np.triu(self._cut[:n, :n], 1)),
            **self.user_rows.tensors("user", np.arange(n)),
        }

    def _restore(self, tensors: Tensors, n: int) -> None:
        """Restore what `tensors` returned."""
        cut = take(tensors, "cut", "i", (None, 2))
        if len(cut) and (cut.min() < 0 or cut.max() >= n or (cut[:, 0] >= cut[:, 1]).any()):
            raise FileError("the model file has a cut edge of a user who is not known")
        self.user_rows.rows = self.user_rows.restore("user", tensors, n)
        self._reach = np.zeros(n)
        for row in range(n):
            self._measure(row)
        self._cut = np.zeros((n, n), dtype=np.bool_)
        self._cut[tuple(cut.T)] = self._cut[tuple(cut[:, ::-1].T)] = True
        self._connect(n)


def _least(values: Floats, parts: Floats) -> Floats:
    """Return the smallest K(s) of each row, by halving where the derivative changes its sign."""
    low, high = np.zeros((len(values), 1)), np.ones((len(values), 1))
    for _ in range(HALVINGS):
        s = (low + high) / 2
        slope = -(parts * (1 - 2 * s - (values - 1) * s * s) / (1 + (values - 1) * s) ** 2).sum(axis=1)
        down = (slope < 0)[:, None]
        low, high = np.where(down, s, low), np.where(down, high, s)
    s = (low + high) / 2
    return np.asarray(1 - (parts * s * (1 - s) / (1 + s * (values - 1))).sum(axis=1))
