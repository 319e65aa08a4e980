"""Playing a batch in a compiled loop, chunk by chunk, where it is sound; Python names what is not."""

from collections.abc import Callable
from typing import Any

import numpy as np

from coterie.errors import CoterieError
from coterie.models import Bank
from coterie.models.loops import Chunk, Items, Log
from coterie.policies.batch import Batch, Outcome, run_one_by_one

CHUNK = 1 << 16  # rounds that are checked and copied at once


def run_chunks(
    policy: Any,
    bank: Bank,
    rows: Callable[[], dict[Any, int]],
    batch: Batch,
    play: Callable[[Chunk, Items], None],
) -> Outcome:
    """Play a batch: `play` gets each chunk, moves the policy on, and leaves what happened in the chunk.

    `rows` tells each known user's row. A chunk that is not sound is played one by one, so that its good
    rounds count and the first bad one raises its error.
    """
    items = None if callable(policy.alpha) else _items(bank, batch)
    if items is None:
        return run_one_by_one(policy, batch)
    parts = []
    for start in range(0, len(batch.users), CHUNK):
        stop = start + CHUNK
        part = Batch(
            batch.users[start:stop],
            batch.candidates[start:stop],
            batch.items,
            batch.payoffs[start:stop],
            None if batch.served is None else batch.served[start:stop],
        )
        if not is_sound(part, len(items.numbers)):
            parts.append(run_one_by_one(policy, part))
            items = Items(bank, bank.read(batch.items))
            continue
        users = part.users.tolist() if isinstance(part.users, np.ndarray) else part.users
        chunk = Chunk(Log(users, part.candidates, part.payoffs, part.served), rows())
        play(chunk, items)
        items.settle()
        done = chunk.rounds
        parts.append(Outcome(done.choice, done.kept, done.members, done.updated))
    if not parts:
        return run_one_by_one(policy, batch)
    return Outcome(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _items(bank: Bank, batch: Batch) -> Items | None:
    """Return the batch's items, or None if a loop cannot take them."""
    try:
        contexts = bank.read(batch.items)
    except CoterieError:
        return None
    if bank.one_hot and len(set(contexts)) < len(contexts):
        return None  # one item under two numbers
    return Items(bank, contexts)


def is_sound(part: Batch, n_items: int) -> bool:
    """Return whether no round of a batch can fail."""
    try:
        for user in part.users:
            hash(user)
    except TypeError:
        return False
    candidates, payoffs, served = np.asarray(part.candidates), np.asarray(part.payoffs), part.served
    n = len(part.users)
    if candidates.ndim != 2 or len(candidates) != n or not candidates.shape[1] or len(payoffs) != n:
        return False
    if candidates.dtype.kind not in "iu" or payoffs.dtype.kind not in "fiub":
        return False
    if served is None and payoffs.shape != candidates.shape:
        return False
    if served is not None and (payoffs.ndim != 1 or len(served) != n or np.min(served) < 0):
        return False
    if candidates.min() < 0 or candidates.max() >= n_items:
        return False
    return bool((np.abs(payoffs) <= 1).all())
