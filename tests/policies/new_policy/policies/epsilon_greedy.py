"""Epsilon-greedy: the candidate that pays best on average over all users, and now and then any candidate."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from coterie.models import make_rows
from coterie.models.checks import check_number, read_payoff
from coterie.models.files import Tensors, pack_ids, unpack_ids
from coterie.models.probability import first_best
from coterie.policies.base.decision import Decision
from coterie.policies.base.parameters import Seed, make_rng
from coterie.policies.base.policy import Policy

EVERYBODY = 0  # the one row


@final
@dataclass(kw_only=True, eq=False, repr=False)
class EpsilonGreedy(Policy):
    """Shows the best candidate so far, and with probability epsilon any candidate.

    n_features, one_hot, seed
        The kind of contexts and the random stream, as in every `Policy`.
    epsilon
        The probability of a uniform choice.

    Raises ParameterError if a setting is not valid.

    >>> policy = EpsilonGreedy(one_hot=True, epsilon=0.0)
    >>> policy.learn("ann", "jazz", 1.0)
    1
    >>> policy.choose("bob", ["news", "jazz"])
    1
    """

    name = "epsilon-greedy"
    reference = "Sutton, Barto 2018: Reinforcement learning, chapter 2"
    tuned = {"epsilon": (0.01, 0.1)}  # noqa: RUF012 (never changed)

    n_features: int | None = None
    one_hot: bool = False
    epsilon: float = 0.1
    seed: Seed = 0

    def __post_init__(self) -> None:
        self.epsilon = check_number("epsilon", self.epsilon)
        self.rng = make_rng(self.seed)
        self.rows = make_rows(self.n_features, self.one_hot)
        self.rows.take()

    def decide(self, user: Hashable, contexts: Any) -> Decision:
        """Return the probabilities."""
        contexts = self.rows.read(contexts)
        estimate, _ = self.rows.view(EVERYBODY, self.rows.numbers(contexts))
        chance = np.full(len(estimate), self.epsilon / len(estimate))
        chance[first_best(estimate)] += 1 - self.epsilon
        return Decision(user, contexts, estimate, chance)

    def learn(self, user: Hashable, context: Any, payoff: float) -> int:
        """Update the one model."""
        contexts = self.rows.read([context])
        payoff = read_payoff(payoff)
        self._known.setdefault(user)
        self.rows.update(EVERYBODY, self.rows.learnable(contexts), payoff)
        self.learned += 1
        return 1

    def tensors(self) -> Tensors:
        """Return all that was learned, as arrays."""
        return {"known": pack_ids(self._known), **self.rows.tensors("model", np.arange(1))}

    def restore(self, tensors: Tensors) -> None:
        """Restore what `tensors` returned."""
        self.rows.rows = self.rows.restore("model", tensors, 1)
        self._known = dict.fromkeys(unpack_ids(tensors, "known"))
