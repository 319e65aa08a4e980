"""Playing a batch in a compiled loop, chunk by chunk."""

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from coterie.models import RidgeRows
from coterie.models.batches import outcome_of
from coterie.models.rows.loops import Chunk, Items
from coterie.policies.base.batch import Batch, Outcome, read_batch, run_one_by_one

CHUNK = 1 << 16  # rounds copied at once


def run_chunks(
    policy: Any,
    models: RidgeRows,
    row: Callable[[Hashable], int],
    batch: Batch,
    play: Callable[[Chunk, Items], None],
) -> Outcome:
    """Play a batch in chunks; `play` plays each chunk, updates the policy, and writes the outcome into the chunk.

    `row` returns a user's row, -1 for an unknown user. Falls back to Python if alpha is callable or an item
    repeats.
    """
    candidates, payoffs, served = read_batch(batch)
    contexts = models.read(batch.items)
    if (
        callable(policy.alpha)
        or not len(candidates)
        or (models.one_hot and len(set(contexts)) < len(contexts))
    ):
        return run_one_by_one(policy, batch)
    users = batch.users.tolist() if isinstance(batch.users, np.ndarray) else batch.users
    items = Items(models, contexts)
    parts = []
    for piece in Batch(users, candidates, contexts, payoffs, served).pieces(0, len(users), CHUNK):
        chunk = Chunk(piece, row)
        play(chunk, items)
        items.settle()
        parts.append(outcome_of(chunk.rounds))
    return Outcome(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
