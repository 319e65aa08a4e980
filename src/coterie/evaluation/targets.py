"""The evaluated policies: fixed ones by name, and policies that learn while the log is replayed."""

import copy
from collections.abc import Sequence
from typing import Any, Protocol, final, runtime_checkable

import numpy as np

from coterie.arrays import Floats
from coterie.data.logs.interactions import Interaction
from coterie.errors import ParameterError
from coterie.models.actions import Actions, read_features
from coterie.models.candidates import Candidates
from coterie.models.encoded import Encoded, encode, name_of
from coterie.policies import Policy

FIXED = ("uniform", "baseline", "logged")


@runtime_checkable
class Target(Protocol):
    """A policy under evaluation, with its probabilities of actions."""

    def probabilities(self, t: int, one: Interaction, encoded: Encoded) -> Floats | None:
        """Return the probability of each action; None for the logged policy if the log does not contain them."""

    def learn(self, one: Interaction, encoded: Encoded) -> None:
        """Learn the logged action's reward."""


def make_target(policy: Any) -> Target:
    """Return the target for a name, a policy or a target. A policy is copied with what it has learned."""
    if isinstance(policy, str):
        if policy not in FIXED:
            raise ParameterError(
                f"policy is {policy!r}, expected {', '.join(FIXED)} or a policy such as Hierarchical(…)"
            )
        return Fixed(policy)
    if not isinstance(policy, Policy) and isinstance(policy, Target):
        return policy
    if not isinstance(policy, Policy):
        raise ParameterError(
            f"policy is a {type(policy).__name__}, expected {', '.join(FIXED)} or a policy such as Hierarchical(…)"
        )
    return Learner(copy.deepcopy(policy))


@final
class Fixed:
    """A policy that learns nothing."""

    def __init__(self, name: str) -> None:
        self.name = name

    def probabilities(self, t: int, one: Interaction, encoded: Encoded) -> Floats | None:
        """Return the probability of each action."""
        n = len(one.actions)
        if self.name == "uniform":
            return np.full(n, 1 / n)
        if self.name == "baseline":
            return np.asarray(np.arange(n) == one.baseline, dtype=np.float64)
        return one.chances

    def learn(self, one: Interaction, encoded: Encoded) -> None:
        """Do nothing."""


@final
class Learner:
    """A policy that decides before each record, and learns from it."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.n_features: int | None = getattr(policy, "n_features", None)
        self.one_hot = bool(getattr(policy, "one_hot", False))

    def probabilities(self, t: int, one: Interaction, encoded: Encoded) -> Floats:
        """Return the probability of each action."""
        return self.policy.decide(one.user, self._contexts(one, encoded)).probability

    def learn(self, one: Interaction, encoded: Encoded) -> None:
        """Learn the logged action's reward."""
        self.policy.learn(one.user, self._contexts(one, encoded)[one.chosen], one.reward)

    def _contexts(self, one: Interaction, encoded: Encoded) -> Actions:
        """Return the actions in the policy's format."""
        if self.n_features is None:
            return list(one.actions) if self.one_hot else encoded
        vectors = encoded.vectors(self.n_features)
        return Candidates.trusted(list(one.actions), vectors) if self.one_hot else vectors


def encode_interaction(one: Interaction) -> Encoded:
    """Return the actions as hashes, the format of the service's sparse model."""
    context = read_features("the context", one.context)
    actions = [
        (name_of(name), read_features(f"action {name!r}", own))
        for name, own in zip(one.actions, _features(one), strict=True)
    ]
    return encode(context, actions)


def _features(one: Interaction) -> Sequence[Any]:
    return one.features if one.features is not None else ({},) * len(one.actions)
