"""HierTS: Thompson sampling for users whose weights have a common, unknown mean (Hong et al., 2022, linear bandits).

paper            here
s                user
θ_{s,*}          the user's weights: N(μ_*, Σ₀), Σ₀ = user_sd²·I
μ_*              the mean of all users: N(0, Σ_q), Σ_q = mean_sd²·I
σ                noise
G_{s,t}, B_{s,t} _products[user], _sums[user]: Σ x xᵀ/σ² and Σ y x/σ²
Σ̄_t⁻¹, Σ̄_t⁻¹μ̄_t  _precision, _shift: what all users say about the mean

    Σ̄_t⁻¹ = Σ_q⁻¹ + Σ_s (Σ₀ + G_s⁻¹)⁻¹,    Σ̄_t⁻¹μ̄_t = Σ_s (Σ₀ + G_s⁻¹)⁻¹ G_s⁻¹ B_s
    θ_s ~ N(Λ⁻¹(Σ₀⁻¹μ_t + B_s), Λ⁻¹),  Λ = Σ₀⁻¹ + G_s,  μ_t ~ N(μ̄_t, Σ̄_t)

The paper draws μ_t, then θ_s, and takes the best candidate. Here a candidate is chosen with the probability that it
is the best one, over both draws at once: the share in 256 draws that t decides. The variances are given, as in the
paper; `Hierarchical` learns them.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import final

import numpy as np

from coterie.arrays import Floats
from coterie.errors import FileError
from coterie.models.actions import ActionLike, ActionsLike
from coterie.models.checks import check_count, check_number, read_payoff, read_vectors
from coterie.models.files import Tensors, pack_ids, take, unpack_ids
from coterie.models.probability import probability_of_best_together
from coterie.policies.base.decision import Basis, Decision
from coterie.policies.base.parameters import Seed, make_rng
from coterie.policies.base.policy import Policy

LEAST = 1e-3  # of a standard deviation


@final
@dataclass(kw_only=True, eq=False, repr=False)
class HierTS(Policy):
    """Learns the mean of all users beside each user's weights, with given variances, and chooses by drawing.

    n_features
        How many features a context has. Contexts are arrays (candidates, n_features), norms at most 1.
    mean_sd, user_sd, noise
        Standard deviations: of the mean around 0, of users around the mean, and of payoffs.
    seed
        Seed of the draws: an integer, or a numpy.random.Generator.

    Raises ParameterError if a number is out of range.

    >>> policy = HierTS(n_features=2)
    >>> for user in ("ann", "bob", "carl"):
    ...     _ = policy.learn_many([user] * 4, [[1.0, 0.0], [0.0, 1.0]] * 2, [1, 0] * 2)
    >>> policy.explain("dora", [[0.0, 1.0], [1.0, 0.0]]).choice
    1
    """

    name = "hier-ts"
    reference = "Hong, Kveton, Zaheer, Ghavamzadeh 2022: Hierarchical Bayesian bandits"
    tuned = {"user_sd": (0.1, 0.3, 1.0), "noise": (0.1, 0.3, 1.0)}  # noqa: RUF012 (never changed)

    n_features: int
    mean_sd: float = 1.0
    user_sd: float = 0.3
    noise: float = 0.3
    seed: Seed = 0

    def __post_init__(self) -> None:
        self.n_features: int = check_count("n_features", self.n_features)
        self.mean_sd = check_number("mean_sd", self.mean_sd, LEAST)
        self.user_sd = check_number("user_sd", self.user_sd, LEAST)
        self.noise = check_number("noise", self.noise, LEAST)
        self.rng = make_rng(self.seed)
        self._products: dict[Hashable, Floats] = {}
        self._sums: dict[Hashable, Floats] = {}
        self._precision: Floats = np.eye(self.n_features) / self.mean_sd**2
        self._shift: Floats = np.zeros(self.n_features)

    def _inner(self, user: Hashable) -> tuple[Floats, Floats]:
        """Return Λ⁻¹ and B of a user."""
        d, a = self.n_features, self.user_sd**-2
        if user not in self._products:
            return np.eye(d) / a, np.zeros(d)
        return np.asarray(np.linalg.inv(a * np.eye(d) + self._products[user])), self._sums[user]

    def _evidence(self, user: Hashable) -> tuple[Floats, Floats]:
        """Return what a user says about the mean: (Σ₀ + G⁻¹)⁻¹ and (Σ₀ + G⁻¹)⁻¹G⁻¹B, without inverting G."""
        inner, sums = self._inner(user)
        a = self.user_sd**-2
        return a * np.eye(self.n_features) - a * a * inner, a * (inner @ sums)

    def decide(self, user: Hashable, contexts: ActionsLike) -> Decision:
        """Give each candidate the probability of being best."""
        x = read_vectors(contexts, self.n_features)
        inner, sums = self._inner(user)
        a = self.user_sd**-2
        between = np.linalg.inv(self._precision)
        estimate = x @ (inner @ (a * (between @ self._shift) + sums))
        own = x @ inner
        covariance = own @ x.T + a * a * (own @ between @ own.T)
        chances = probability_of_best_together(estimate, (covariance + covariance.T) / 2, self.learned)
        members = len(self._known) + (user not in self._known)
        width = np.sqrt(np.maximum(np.diag(covariance), 0))
        return Decision(user, x, estimate, chances, estimate=estimate, width=width, basis=Basis(members))

    def learn(self, user: Hashable, context: ActionLike, payoff: float) -> int:
        """Update the user's sums, and what the user says about the mean."""
        [x] = read_vectors([context], self.n_features)
        payoff = read_payoff(payoff)
        precision, shift = self._evidence(user)
        scale = self.noise**-2
        self._products[user] = self._products.get(user, 0.0) + scale * np.outer(x, x)
        self._sums[user] = self._sums.get(user, 0.0) + scale * payoff * x
        now, towards = self._evidence(user)
        self._precision = self._precision + now - precision
        self._shift = self._shift + towards - shift
        self._known.setdefault(user)
        self.learned += 1
        return 1

    def neighbours(self, user: Hashable, context: ActionLike) -> list[Hashable]:
        """Return the users whose payoffs decide for `user`: all, including `user`."""
        read_vectors([context], self.n_features)
        return list(self._known | {user: None})

    def drop(self, user: Hashable) -> None:
        """Forget a user; what the mean of all users learned from the user stays."""
        super().drop(user)
        self._products.pop(user, None)
        self._sums.pop(user, None)

    def tensors(self) -> Tensors:
        """Return all that was learned, as arrays."""
        d = self.n_features
        return {
            "known": pack_ids(self._known),
            "learners": pack_ids(self._products),
            "products": np.array(list(self._products.values())).reshape(-1, d, d),
            "sums": np.array(list(self._sums.values())).reshape(-1, d),
            "precision": self._precision,
            "shift": self._shift,
        }

    def restore(self, tensors: Tensors) -> None:
        """Restore what `tensors` returned."""
        d = self.n_features
        known, learners = unpack_ids(tensors, "known"), unpack_ids(tensors, "learners")
        if not set(learners) <= set(known):
            raise FileError("the model file names a user who learned but is not known")
        n = len(learners)
        products, sums = take(tensors, "products", "f", (n, d, d)), take(tensors, "sums", "f", (n, d))
        precision, shift = take(tensors, "precision", "f", (d, d)), take(tensors, "shift", "f", (d,))
        try:
            np.linalg.cholesky(np.concatenate([products + self.user_sd**-2 * np.eye(d), precision[None]]))
        except np.linalg.LinAlgError:
            raise FileError("a matrix in the model file is not positive definite") from None
        self._known = dict.fromkeys(known)
        self._products = {user: products[row].copy() for row, user in enumerate(learners)}
        self._sums = {user: sums[row].copy() for row, user in enumerate(learners)}
        self._precision, self._shift = precision.copy(), shift.copy()
