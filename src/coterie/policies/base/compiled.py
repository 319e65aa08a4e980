"""Playing a batch in a compiled loop, chunk by chunk."""

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from coterie.models import RidgeRows
from coterie.models.rows.chunks import Chunk, Items, Log
from coterie.policies.base.batch import Batch, Outcome, read_batch, run_one_by_one

CHUNK = 1 << 16  # rounds copied at once


def run_chunks(
    policy: Any,
    models: RidgeRows,
    row: Callable[[Hashable], int],
    batch: Batch,
    play: Callable[[Chunk, Items, float], None],
) -> Outcome:
    """Play a batch in chunks; `play` plays each chunk, with alpha, and updates the policy.

    `row` returns a user's row, -1 for an unknown user. Falls back to Python if alpha is callable or an item
    repeats.
    """
    candidates, payoffs, served = read_batch(batch)
    contexts = models.read(batch.items)
    alpha, repeats = policy.alpha, models.one_hot and len(set(contexts)) < len(contexts)
    if callable(alpha) or repeats or not len(candidates):
        return run_one_by_one(policy, batch)
    log = Log(batch.users, candidates, payoffs, served)
    return play_chunks(log, Items(models, contexts), row, lambda chunk, items: play(chunk, items, alpha))


def play_chunks(
    log: Log, items: Items, row: Callable[[Hashable], int], play: Callable[[Chunk, Items], None]
) -> Outcome:
    """Play checked rounds in chunks, as `run_chunks` does."""
    users = log.users.tolist() if isinstance(log.users, np.ndarray) else log.users
    parts = []
    for start in range(0, len(users), CHUNK):
        part = slice(start, start + CHUNK)
        chunk = Chunk(Log(users[part], log.candidates[part], log.payoffs[part], log.served[part]), row)
        play(chunk, items)
        items.settle()
        done = chunk.rounds
        parts.append(Outcome(done.choice, done.kept, done.members, done.updated))
    return Outcome(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
