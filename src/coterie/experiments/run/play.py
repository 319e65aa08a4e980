"""The loop of every experiment: batches of rounds in, rows of the trace out.

A policy plays a batch in one compiled loop. Results do not depend on the batches: `Policy.run` returns the same as
`choose` and `learn` round by round. A log's trace holds only the kept records: those where the policy picked the
served item.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from coterie.data.rounds import Round, batches_of
from coterie.errors import UserError
from coterie.experiments.run.trace import SCHEMA
from coterie.models.actions import Action
from coterie.models.batches import Batch, Outcome, names_of
from coterie.models.candidates import project
from coterie.policies import Policy


class Row(NamedTuple):
    """What happened in one round."""

    round: int  # counted from 0
    user: str
    item: str | None  # the id of the shown item; None if items are feature vectors
    choice: int  # its place in the list of candidates
    payoff: float  # the payoff; NaN if the log does not contain it, and then nothing was learned
    expected: float  # the expected payoff of this choice
    best: float  # the expected payoff of the best candidate
    neighbours: int  # how many users' models the decision used, including the user's own
    updated: int  # how many users' models learned from the payoff


def play(policy: Policy, rounds: Iterable[Round], start: int = 0) -> Iterator[Row]:
    """Let `policy` decide and learn in each round; the first round is counted as `start`.

    When a row is yielded, the policy may already have played later rounds of the same batch.
    """
    for _, table in play_batches(policy, batches_of(rounds), start, 1):
        yield from map(Row._make, zip(*table.to_pydict().values(), strict=True))


def play_batches(
    policy: Policy,
    batches: Iterable[Batch],
    start: int,
    every: int,
    tick: Callable[[int], None] = lambda done: None,
) -> Iterator[tuple[int, pa.Table]]:
    """Play batches, the first round counted as `start`; yield how many rounds are done, and their rows.

    Rows are yielded after at least every `every` rounds, and at the end.
    """
    done, since, parts = start, start, []
    tick(done)
    for batch in batches:
        for user in batch.left:
            with suppress(UserError):  # users who were never served are unknown to the policy
                policy.drop(user)
        for user in batch.joined:
            policy.add(user)
        parts.append(_table(batch, policy.run(batch), done))
        done += len(batch.users)
        tick(done)
        if done - since >= every:
            yield done, pa.concat_tables(parts)
            since, parts = done, []
    if parts:
        yield done, pa.concat_tables(parts)


def _table(batch: Batch, outcome: Outcome, start: int) -> pa.Table:
    """Return the rows of a trace: of all rounds if their expected payoffs are known, else of those that were kept."""
    rows = np.arange(len(outcome.kept)) if batch.expected is not None else np.flatnonzero(outcome.kept)
    choice = outcome.choice[rows]
    paid = batch.payoffs[rows] if batch.served is not None else batch.payoffs[rows, choice]
    payoff = np.where(outcome.kept[rows], paid, np.nan)
    expected, best = payoff, np.full(len(rows), np.nan)  # the best is unknown in a log
    if batch.expected is not None:
        expected, best = batch.expected[rows, choice], batch.expected[rows].max(axis=1)
    elif batch.served is None:
        best = batch.payoffs[rows].max(axis=1)
    users = batch.users[rows] if isinstance(batch.users, np.ndarray) else [batch.users[t] for t in rows]
    columns = {
        "round": start + rows,
        "user": list(map(str, names_of(users))),
        "item": _items(batch, batch.candidates[rows, choice].tolist()),
        "choice": choice.astype(np.int32),
        "payoff": payoff,
        "expected": expected,
        "best": best,
        "neighbours": outcome.members[rows].astype(np.int32),
        "updated": outcome.updated[rows].astype(np.int32),
    }
    return pa.table(columns, schema=SCHEMA)


def _items(batch: Batch, chosen: list[int]) -> list[str | None]:
    """Return the ids of some items as text; None if they have features only."""
    names = project(batch.items, "ids")
    if isinstance(names, np.ndarray):
        return [None] * len(chosen)
    return [str(name.id if isinstance(name, Action) else name) for name in (names[k] for k in chosen)]
