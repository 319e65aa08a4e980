"""Small worlds whose truth is known, and logs of them, to check off-policy evaluation."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie import Hierarchical
from coterie.data.logs.interactions import Interaction, InteractionLog
from coterie.evaluation.targets import encode_interaction
from coterie.models.actions import ActionsLike

Floats = NDArray[np.float64]
ACTIONS = ("a", "b", "c", "d")
CONTEXTS = ("morning", "noon", "night")
USERS = 6


class Lived(NamedTuple):
    """A log, and the expected payoff of each action in each record."""

    log: InteractionLog
    means: Floats  # (records, actions)


def live(seed: int, n: int, logger: str, pays: float = 0.6) -> Lived:
    """Return a log of `n` records, made by "uniform", "epsilon" (a tenth random) or "learning"."""
    rng = np.random.default_rng(seed)
    truth = pays * rng.random((len(CONTEXTS), USERS, len(ACTIONS)))
    policy = Hierarchical(slots=1 << 13, floor=0.1, seed=seed)
    found, means = [], np.zeros((n, len(ACTIONS)))
    for t in range(n):
        place, user = int(rng.integers(len(CONTEXTS))), int(rng.integers(USERS))
        asked = Interaction(f"u{user}", ACTIONS, None, {f"time={CONTEXTS[place]}": 1.0}, 0, 1.0, None, 0.0)
        encoded = encode_interaction(asked)
        chances = LOGGERS[logger](policy, asked.user, encoded, place)
        chosen = int(rng.choice(len(ACTIONS), p=chances / chances.sum()))
        means[t] = truth[place, user]
        reward = float(rng.random() < means[t, chosen])
        if logger == "learning":
            policy.learn(asked.user, encoded[chosen], reward)
        probability = float(chances[chosen])
        found.append(asked._replace(chosen=chosen, probability=probability, chances=chances, reward=reward))
    return Lived(InteractionLog(f"{logger}-{seed}", found), means)


def _uniform(*_: object) -> Floats:
    return np.full(len(ACTIONS), 1 / len(ACTIONS))


def _epsilon(_policy: object, _user: object, _encoded: object, place: int) -> Floats:
    chances = np.full(len(ACTIONS), 0.1 / len(ACTIONS))
    chances[place % len(ACTIONS)] += 0.9
    return chances


def _learning(policy: Hierarchical, user: object, encoded: ActionsLike, _place: int) -> Floats:
    return policy.decide(user, encoded).probability


LOGGERS: dict[str, Callable[..., Floats]] = {
    "uniform": _uniform,
    "epsilon": _epsilon,
    "learning": _learning,
}


def truth_of(lived: Lived, policy: Hierarchical | None, fixed: str) -> float:
    """Return the average payoff of a policy on the log's records: a fixed one, or one that learns from them."""
    total = 0.0
    for one, means in zip(lived.log.interactions, lived.means, strict=True):
        if policy is not None:
            encoded = encode_interaction(one)
            total += float(policy.decide(one.user, encoded).probability @ means)
            policy.learn(one.user, encoded[one.chosen], one.reward)
        else:
            total += float(means.mean() if fixed == "uniform" else means[one.baseline])
    return total / len(lived.means)
