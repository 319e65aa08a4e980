"""LOCB: clusters around seed users, which may overlap (Ban and He, 2021).

paper            here
i                user
s ∈ S            a position in _seeds, up to n_seeds
N_s              the users who have not left the seed's cluster: `s not in _left[user]`
A_i, b_i, T_i    _products[user], _sums[user], _times[user]; θ_i = A_i⁻¹b_i
A_{N_s}, b_{N_s} _pool_products[s], _pool_sums[s], with _pool_times[s] payoffs and one
f(T)             √((1 + log(1 + T))/(1 + T))
β                √(d·log(1 + T/d) + 4·log t + log 2) + 1
γ                gamma

A cluster starts with everybody. After each payoff of i, for each seed s that is not final, i leaves the cluster if
‖θ_i − θ_s‖ > f(T_i) + f(T_s), and joins again if it is smaller. A seed with f(T_s) ≤ γ/4 is final. Over all clusters
that hold the user, the candidate with the largest θ·x + β·xᵀA⁻¹x is chosen, without a root, as in the authors' code;
a user whom no cluster holds decides alone.

There, seeds are drawn from all users. Here users are known when they first come, so the first users are the seeds.
If a seed is dropped, its cluster is final.
"""

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from coterie.arrays import Floats
from coterie.errors import FileError
from coterie.models.actions import ActionLike, ActionsLike
from coterie.models.checks import check_count, check_number, check_user, read_payoff, read_vectors
from coterie.models.files import Tensors, pack_ids, take, unpack_ids
from coterie.models.probability import first_best
from coterie.policies.base.decision import Basis, Decision
from coterie.policies.base.policy import Policy

DROPPED = -1  # in place of a seed's row


@final
@dataclass(kw_only=True, eq=False, repr=False)
class LOCB(Policy):
    """Decides with the cluster that promises most among those around seed users that hold the user.

    n_features
        How many features a context has. Contexts are arrays (candidates, n_features), norms at most 1.
    n_seeds
        How many users have a cluster around them.
    gamma
        A cluster does not change any more once its seed is known to gamma/4.

    Raises ParameterError if a number is out of range.

    >>> policy = LOCB(n_features=2)
    >>> policy.learn_many(["ann"] * 40, [[1.0, 0.0], [0.0, 1.0]] * 20, [1, 0] * 20)
    40
    >>> policy.choose("bob", [[0.0, 1.0], [1.0, 0.0]])
    1
    """

    name = "locb"
    reference = "Ban, He 2021: Local clustering in contextual multi-armed bandits"
    finds_neighbours = True
    tuned = {"gamma": (0.1, 0.2, 0.4), "n_seeds": (5, 20, 50)}  # noqa: RUF012 (never changed)

    n_features: int
    n_seeds: int = 20
    gamma: float = 0.2

    def __post_init__(self) -> None:
        d = self.n_features = check_count("n_features", self.n_features)
        self.n_seeds = check_count("n_seeds", self.n_seeds)
        self.gamma = check_number("gamma", self.gamma)
        self._products: dict[Hashable, Floats] = {}
        self._sums: dict[Hashable, Floats] = {}
        self._times: dict[Hashable, int] = {}
        self._left: dict[Hashable, set[int]] = {}
        self._seeds: list[Hashable | None] = []  # None once it is dropped
        self._pool_products: Floats = np.zeros((0, d, d))
        self._pool_sums: Floats = np.zeros((0, d))
        self._pool_times: Floats = np.zeros(0)

    def _holding(self, user: Hashable) -> list[int]:
        """Return the clusters that hold a user: for an unknown one, all."""
        left = self._left.get(user, ())
        return [s for s in range(len(self._seeds)) if s not in left]

    def _own(self, user: Hashable) -> tuple[Floats, Floats, float]:
        d = self.n_features
        return (
            self._products.get(user, np.eye(d)),
            self._sums.get(user, np.zeros(d)),
            self._times.get(user, 0),
        )

    def _scores(self, x: Floats, products: Floats, sums: Floats, times: Any) -> tuple[Floats, Floats]:
        """Return the estimate and the bound of each candidate, (models, candidates), by some models."""
        d, t = self.n_features, self.learned + 1
        beta = np.sqrt(d * np.log(1 + np.asarray(times) / d) + 4 * math.log(t) + math.log(2)) + 1
        given = np.concatenate([sums[:, :, None], np.broadcast_to(x.T, (len(sums), *x.T.shape))], axis=2)
        solved = np.linalg.solve(products, given)  # (models, d, 1 + candidates)
        return solved[:, :, 0] @ x.T, beta[:, None] * (x.T * solved[:, :, 1:]).sum(axis=1)

    def _alone(self, user: Hashable, x: Floats) -> tuple[Floats, Floats]:
        product, sums, times = self._own(user)
        estimate, bound = self._scores(x, product[None], sums[None], [times])
        return estimate[0], bound[0]

    def _deciding(self, user: Hashable, x: Floats) -> tuple[int, Floats, Floats]:
        """Return the cluster that promises most, -1 for the user alone, with its estimates and bounds."""
        held = self._holding(user)
        if not held:
            return -1, *self._alone(user, x)
        estimate, bound = self._scores(
            x, self._pool_products[held], self._pool_sums[held], self._pool_times[held] + 1
        )
        k = first_best((estimate + bound).max(axis=1))
        return held[k], estimate[k], bound[k]

    def _members(self, user: Hashable, s: int) -> list[Hashable]:
        """Return the users of a cluster, with `user`."""
        if s < 0:
            return [user]
        return [one for one in self._known if s not in self._left.get(one, ()) or one == user] + (
            [] if user in self._known else [user]
        )

    def decide(self, user: Hashable, contexts: ActionsLike) -> Decision:
        """Score each candidate by the cluster that promises most."""
        x: Any = read_vectors(contexts, self.n_features)
        s, estimate, width = self._deciding(user, x)
        own, bound = self._alone(user, x)
        members = np.full(len(x), len(self._members(user, s)), dtype=np.int64)
        chance = np.eye(len(x))[first_best(estimate + width)]
        return Decision(
            user, x, estimate + width, chance, estimate=own, width=bound,
            basis=Basis(members, estimate, width),
        )  # fmt: skip

    def neighbours(self, user: Hashable, context: ActionLike) -> list[Hashable]:
        """Return the users of the cluster that decides for `user` on `context`, including `user`."""
        check_user(user)
        return self._members(user, self._deciding(user, read_vectors([context], self.n_features))[0])

    def learn(self, user: Hashable, context: ActionLike, payoff: float) -> int:
        """Update the user and the clusters that hold the user, then let the user leave and join clusters."""
        [x] = read_vectors([context], self.n_features)
        payoff = read_payoff(payoff)
        self.add(user)
        product, sums, times = self._own(user)
        self._products[user], self._sums[user] = product + np.outer(x, x), sums + payoff * x
        self._times[user] = int(times) + 1
        holding = self._holding(user)
        self._pool_products[holding] += np.outer(x, x)
        self._pool_sums[holding] += payoff * x
        self._pool_times[holding] += 1
        unsure = [
            s
            for s, seed in enumerate(self._seeds)
            if seed is not None and _spread(self._times.get(seed, 0)) > self.gamma / 4
        ]
        if unsure:
            mine, *others = self._profiles([user, *(self._seeds[s] for s in unsure)])
            for s, profile in zip(unsure, others, strict=True):
                self._move(user, s, float(np.linalg.norm(mine - profile)))
        self.learned += 1
        return 1

    def _move(self, user: Hashable, s: int, apart: float) -> None:
        """Let the user leave the cluster of a seed, or join it again."""
        bound = _spread(self._times[user]) + _spread(self._times.get(self._seeds[s], 0))
        left = self._left[user]
        if (s in left and apart < bound) or (s not in left and apart > bound):
            sign = 1 if s in left else -1
            left ^= {s}
            self._pool_products[s] += sign * (self._products[user] - np.eye(self.n_features))
            self._pool_sums[s] += sign * self._sums[user]
            # Not below 0, whatever a model file says of the user and of the cluster.
            self._pool_times[s] = max(0.0, self._pool_times[s] + sign * self._times[user])

    def _profiles(self, users: list[Hashable]) -> Floats:
        products, sums, _ = zip(*map(self._own, users), strict=True)
        return np.asarray(np.linalg.solve(np.array(products), np.array(sums)[:, :, None])[:, :, 0])

    def add(self, user: Hashable) -> None:
        """Register a user; the first `n_seeds` become seeds, with a cluster of everybody."""
        super().add(user)
        if user in self._left:
            return
        self._left[user] = set()
        if len(self._seeds) < self.n_seeds:
            d = self.n_features
            self._seeds.append(user)
            together = sum((one - np.eye(d) for one in self._products.values()), start=np.eye(d))
            sums = sum(self._sums.values(), start=np.zeros(d))
            self._pool_products = np.concatenate([self._pool_products, together[None]])
            self._pool_sums = np.concatenate([self._pool_sums, sums[None]])
            self._pool_times = np.append(self._pool_times, float(sum(self._times.values())))

    def drop(self, user: Hashable) -> None:
        """Forget a user; what clusters learned from the user stays."""
        super().drop(user)
        for kept in (self._products, self._sums, self._times, self._left):
            kept.pop(user, None)
        self._seeds = [None if seed == user else seed for seed in self._seeds]

    def tensors(self) -> Tensors:
        """Return all that was learned, as arrays."""
        d, known = self.n_features, list(self._known)
        learners = list(self._products)
        left = np.zeros((len(known), len(self._seeds)), dtype=np.uint8)
        for row, user in enumerate(known):
            left[row, sorted(self._left[user])] = 1
        seeds = [DROPPED if seed is None else known.index(seed) for seed in self._seeds]
        return {
            "known": pack_ids(known),
            "learners": pack_ids(learners),
            "left": left,
            "seeds": np.array(seeds, dtype=np.int64),
            "products": np.array(list(self._products.values())).reshape(-1, d, d),
            "sums": np.array(list(self._sums.values())).reshape(-1, d),
            "times": np.array(list(self._times.values()), dtype=np.int64),
            "pool_products": self._pool_products,
            "pool_sums": self._pool_sums,
            "pool_times": self._pool_times,
        }

    def restore(self, tensors: Tensors) -> None:
        """Restore what `tensors` returned."""
        d = self.n_features
        known, learners = unpack_ids(tensors, "known"), unpack_ids(tensors, "learners")
        n, k = len(learners), len(take(tensors, "seeds", "i", (None,)))
        seeds = take(tensors, "seeds", "i", (k,)).tolist()
        products, sums = take(tensors, "products", "f", (n, d, d)), take(tensors, "sums", "f", (n, d))
        times, left = take(tensors, "times", "i", (n,)), take(tensors, "left", "u", (len(known), k))
        pools = take(tensors, "pool_products", "f", (k, d, d))
        pool_sums, pool_times = (
            take(tensors, "pool_sums", "f", (k, d)),
            take(tensors, "pool_times", "f", (k,)),
        )
        if not set(learners) <= set(known) or not all(DROPPED <= row < len(known) for row in seeds):
            raise FileError("the model file names a user who learned or is a seed, but is not known")
        if (times < 1).any() or (pool_times < 0).any():
            raise FileError("the model file has users or clusters with less than no payoff")
        try:
            np.linalg.cholesky(np.concatenate([products, pools]))
        except np.linalg.LinAlgError:
            raise FileError("a matrix in the model file is not positive definite") from None
        self._known = dict.fromkeys(known)
        self._products = {user: products[row].copy() for row, user in enumerate(learners)}
        self._sums = {user: sums[row].copy() for row, user in enumerate(learners)}
        self._times = dict(zip(learners, times.tolist(), strict=True))
        self._left = {user: set(np.flatnonzero(left[row]).tolist()) for row, user in enumerate(known)}
        self._seeds = [None if row == DROPPED else known[row] for row in seeds]
        self._pool_products, self._pool_sums = pools.copy(), pool_sums.copy()
        self._pool_times = pool_times.copy()


def _spread(times: float) -> float:
    """Return how uncertain a profile is after so many payoffs."""
    return math.sqrt((1 + math.log(1 + times)) / (1 + times))
