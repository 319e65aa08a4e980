"""Checks of a batch, the plain loop that plays it, and compiled loops that play it chunk by chunk."""

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.errors import ContextError, NumberError, PayoffError
from coterie.models import RidgeRows
from coterie.models.batches import REFUSED, Batch, Outcome, check_learned, no_outcome
from coterie.models.candidates import pick
from coterie.models.checks import check_user, check_users, check_whole
from coterie.models.rows.chunks import Chunk, Game, Items, play_chunks

__all__ = ["Batch", "Outcome", "check_learned", "read_batch", "run_one_by_one"]


def read_batch(
    batch: Batch, most: float = 1.0
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    """Check a batch before anything is learned, and return candidates, payoffs (2-d) and served (-1: none).

    Payoffs must be in [-most, most].
    """
    check_users(batch.users)
    for name in ("candidates", "served"):
        check_whole(name, getattr(batch, name), ContextError)
    rounds = len(batch.users)
    if not (isinstance(batch.users, np.ndarray) and batch.users.dtype.kind in "iu"):
        for user in batch.users:
            check_user(user)
    candidates = np.asarray(batch.candidates)
    if candidates.ndim != 2 or len(candidates) != rounds or candidates.dtype.kind not in "iu":
        raise ContextError(
            f"candidates are {candidates.dtype} {candidates.shape}, expected integers ({rounds}, candidates): "
            "one row of positions in `items` for each of the users"
        )
    if rounds and candidates.shape[1] == 0:
        raise ContextError("the candidate lists are empty; give at least one candidate a round")
    outside = candidates.size and (candidates.min() < 0 or candidates.max() >= len(batch.items))
    if outside:
        raise ContextError(
            f"candidates reach from {candidates.min()} to {candidates.max()}, expected positions in the "
            f"{len(batch.items)} items"
        )
    shape = (rounds,) if batch.served is not None else candidates.shape
    check_whole("payoffs", batch.payoffs, PayoffError)
    try:
        payoffs = np.asarray(batch.payoffs, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise PayoffError(f"payoffs must be numbers in [{-most:g}, {most:g}] ({error})") from error
    if payoffs.shape != shape:
        raise PayoffError(f"payoffs have shape {payoffs.shape}, expected {shape}")
    wrong = ~((payoffs >= -most) & (payoffs <= most))
    if wrong.any():
        raise PayoffError(
            f"payoff is {float(payoffs[wrong][0])!r}, expected a number in [{-most:g}, {most:g}]"
        )
    served = np.full(rounds, -1) if batch.served is None else np.asarray(batch.served)
    if served.shape != (rounds,) or served.dtype.kind not in "iu":
        raise ContextError(f"served is {served.dtype} {served.shape}, expected integers ({rounds},)")
    if batch.served is not None and rounds and (served.min() < 0 or served.max() >= candidates.shape[1]):
        raise ContextError(
            f"served reaches from {served.min()} to {served.max()}, expected positions in the candidate lists, "
            f"0 to {candidates.shape[1] - 1}"
        )
    return (
        candidates.astype(np.int64, copy=False),
        payoffs.reshape(rounds, -1) if rounds else payoffs.reshape(0, 1),
        served.astype(np.int64, copy=False),
    )


def run_one_by_one(policy: Any, batch: Batch) -> Outcome:
    """Play a batch through `decide` and `learn`: the reference for every compiled loop."""
    candidates, payoffs, served = read_batch(batch, policy.largest_payoff)
    outcome = no_outcome(len(batch.users))
    for t, user in enumerate(batch.users):
        contexts = pick(batch.items, candidates[t])
        decision = policy.decide(user, contexts)
        k = policy.draw(decision)
        outcome.choice[t], outcome.members[t] = k, decision.members[k]
        if served[t] >= 0 and served[t] != k:
            continue
        payoff = payoffs[t, k if served[t] < 0 else 0]
        try:
            outcome.updated[t] = policy.learn(user, contexts[k], float(payoff))
            outcome.kept[t] = True
        except NumberError:
            outcome.updated[t] = REFUSED
    return check_learned(outcome)


def run_chunks(
    policy: Any,
    models: RidgeRows,
    row: Callable[[Hashable], int],
    batch: Batch,
    loop: Callable[[Any, Game, Any], None],
    state: Callable[[float], Any],
    join: Callable[[Hashable], object],
) -> Outcome:
    """Play a batch with a compiled loop, in chunks, and update the policy.

    `row` returns a user's row, -1 for an unknown user. `state` makes room and returns what the loop takes, with
    alpha; `join` registers a user who got a row. Falls back to Python if alpha is callable or an item repeats.
    """
    candidates, payoffs, served = read_batch(batch)
    contexts = models.read(batch.items)
    alpha, repeats = policy.alpha, models.one_hot and len(set(contexts)) < len(contexts)
    if callable(alpha) or repeats or not len(candidates):
        return run_one_by_one(policy, batch)

    def play(chunk: Chunk, items: Items) -> None:
        policy.learned = chunk.play(
            items.numbers, items.named, policy.learned, len(policy.users),
            lambda game: loop(state(alpha), game, policy.rng),
        )  # fmt: skip
        for user in chunk.joined:
            join(user)

    checked = Batch(batch.users, candidates, contexts, payoffs, served)
    return play_chunks(checked, Items(models, contexts), row, play)
