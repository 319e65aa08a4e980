"""The fast loop of experiments: blocks of rounds in, tables of the trace out, through `Policy.run`.

A log's trace holds only the kept records: those where the policy picked the served item.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from coterie.experiments.run.trace import SCHEMA
from coterie.models.actions import Action
from coterie.models.batches import Batch, Outcome
from coterie.models.candidates import project
from coterie.policies import Policy


def play_blocks(
    policy: Policy,
    blocks: Iterator[Batch],
    start: int,
    every: int,
    tick: Callable[[int], None] = lambda done: None,
) -> Iterator[tuple[int, pa.Table]]:
    """Play blocks, the first round counted as `start`; yield how many rounds are done, and their rows.

    Rows are yielded after at least every `every` rounds, and at the end.
    """
    done, since, parts = start, start, []
    tick(done)
    for block in blocks:
        outcome = policy.run(block)
        parts.append(_table(block, outcome, done))
        done += len(block.users)
        tick(done)
        if done - since >= every:
            yield done, pa.concat_tables(parts)
            since, parts = done, []
    if parts:
        yield done, pa.concat_tables(parts)


def _table(block: Batch, outcome: Outcome, start: int) -> pa.Table:
    """Return the rows of a trace, as `play` would write them, for the rounds that were learned from."""
    kept = np.flatnonzero(outcome.kept)
    choice = outcome.choice[kept]
    if block.served is None:
        payoff = block.payoffs[kept, choice]
        best = block.payoffs[kept].max(axis=1)
    else:
        payoff = block.payoffs[kept]
        best = np.full(len(kept), np.nan)  # unknown in a log
    columns = {
        "round": start + kept,
        "user": _names(np.asarray(block.users)[kept]),
        "item": _items(block, block.candidates[kept, choice]),
        "choice": choice.astype(np.int32),
        "payoff": payoff,
        "expected": payoff,
        "best": best,
        "neighbours": outcome.members[kept].astype(np.int32),
        "updated": outcome.updated[kept].astype(np.int32),
    }
    return pa.table(columns, schema=SCHEMA)


def _names(users: NDArray[Any]) -> pa.Array:
    """Return ids as text. Arrow has no integers beyond 64 bits, so Python writes those."""
    return pa.array(map(str, users.tolist()) if users.dtype == object else users).cast(pa.string())


def _items(block: Batch, chosen: Any) -> pa.Array:
    names = project(block.items, "ids")
    if isinstance(names, np.ndarray):
        return pa.nulls(len(chosen), pa.string())
    return pa.array([str(item.id if isinstance(item, Action) else item) for item in names]).take(
        pa.array(chosen)
    )
