"""Many rounds as arrays, and what a policy did in them: the shape in which loops are compiled."""

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Batch(NamedTuple):
    """Rounds to be played one after the other.

    With `served`, the rounds are a log: round t counts, and is learned from, only when the policy picks the
    candidate at position `served[t]`, which paid `payoffs[t]`. Without it, every candidate's payoff is known,
    `payoffs` is (rounds, candidates), and every round is learned from.
    """

    users: Sequence[Hashable]  # (rounds,)
    candidates: NDArray[np.int64]  # (rounds, candidates): positions in `items`
    items: Any  # item ids, or their feature vectors (items, n_features)
    payoffs: NDArray[np.float64]  # (rounds,) with `served`, else (rounds, candidates)
    served: NDArray[np.int64] | None = None  # (rounds,)


class Outcome(NamedTuple):
    """What happened in each round of a batch: all (rounds,)."""

    choice: NDArray[np.int64]  # the position picked
    kept: NDArray[np.bool_]  # whether the round was learned from
    members: NDArray[np.int64]  # how many users the decision rested on
    updated: NDArray[np.int64]  # how many users' models were updated


def run_one_by_one(policy: Any, batch: Batch) -> Outcome:
    """Play a batch through `decide` and `learn`: the reference for every compiled loop."""
    rounds = len(batch.users)
    outcome = Outcome(
        np.zeros(rounds, dtype=np.int64),
        np.zeros(rounds, dtype=np.bool_),
        np.zeros(rounds, dtype=np.int64),
        np.zeros(rounds, dtype=np.int64),
    )
    for t, user in enumerate(batch.users):
        rows = batch.candidates[t]
        contexts = (
            batch.items[rows] if isinstance(batch.items, np.ndarray) else [batch.items[i] for i in rows]
        )
        decision = policy.decide(user, contexts)
        k = decision.choice
        outcome.choice[t], outcome.members[t] = k, decision.members[k]
        if batch.served is not None and batch.served[t] != k:
            continue
        payoff = batch.payoffs[t, k] if batch.served is None else batch.payoffs[t]
        outcome.kept[t] = True
        outcome.updated[t] = policy.learn(user, contexts[k], float(payoff))
    return outcome
