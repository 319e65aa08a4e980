"""Playing a batch in a compiled loop, chunk by chunk."""

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from coterie.models import RidgeRows
from coterie.models.batches import names_of, outcome_of
from coterie.models.rows.chunks import Chunk, Items
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
    checked = Batch(batch.users, candidates, contexts, payoffs, served)
    return play_chunks(checked, Items(models, contexts), row, lambda chunk, items: play(chunk, items, alpha))


def play_chunks(
    batch: Batch, items: Items, row: Callable[[Hashable], int], play: Callable[[Chunk, Items], None]
) -> Outcome:
    """Play a checked batch in chunks, as `run_chunks` does."""
    users = names_of(batch.users)
    parts = []
    for piece in batch._replace(users=users).pieces(0, len(users), CHUNK):
        chunk = Chunk(piece, row)
        play(chunk, items)
        items.settle()
        parts.append(outcome_of(chunk.rounds))
    return Outcome(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
