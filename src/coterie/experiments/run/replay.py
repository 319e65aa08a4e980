"""Replay a log: a record counts, and is learned from, only if the policy picks the served item.

If the log's items were served at random, the records that count are an unbiased sample of what the policy
would have earned (Li et al., 2011).
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from coterie.arrays import Array, Bools, Floats, Ints
from coterie.errors import ContextError, ParameterError, PayoffError, UserError
from coterie.models.actions import Actions, ActionsLike
from coterie.models.batches import distinct
from coterie.models.checks import check_user
from coterie.policies import Policy
from coterie.policies.base.batch import Batch
from coterie.policies.base.log_batches import read_for

Progress = Callable[[int, int], None]

# Approximate seconds between two calls of `progress`: short enough to stop a replay, long enough to be cheap.
PAUSE = 0.2


@final
@dataclass(frozen=True, eq=False)
class Replay:
    """The outcome of each record; all arrays are (records,)."""

    choice: Ints  # the position picked
    kept: Bools  # whether it was the served one, so that the record counts
    payoffs: Floats  # the payoff of the served item

    def curve(self) -> Floats:
        """Return the click-through curve: the mean payoff of the first 1, 2, … records that count."""
        paid = self.payoffs[self.kept]
        return np.cumsum(paid) / np.arange(1, len(paid) + 1)


def replay(
    policy: Policy,
    users: Any,
    candidates: Any,
    served: Any,
    payoffs: Any,
    items: "ActionsLike | None" = None,
    progress: Progress | None = None,
) -> Replay:
    """Let `policy` choose in every record, and learn from those in which it picks the served item.

    `users` has an id for each record, `candidates` is (records, candidates) of integers: item ids, or
    positions in `items`, a table of features, a list of ids, or `Candidates`. `served` is the position of the
    logged item among the candidates, `payoffs` its payoff. `progress(done, records)` is called from time to
    time. After an interrupt the policy has learned the records done so far.

    Returns the outcome of each record. Raises UserError, ContextError or PayoffError before anything is
    learned if the log cannot be read, and ParameterError if `items` are missing.

    >>> from coterie import CAB
    >>> log = replay(CAB(one_hot=True), [1, 2, 1], [[7, 8], [8, 7], [7, 8]], [0, 1, 0], [1.0, 0.0, 1.0])
    >>> log.choice.tolist(), log.kept.tolist(), log.curve().tolist()
    ([0, 0, 0], [True, False, True], [1.0, 1.0])
    """
    names = _read_users(users)
    lists, places, paid = _read_log(len(names), candidates, served, payoffs)
    table = _read_table(policy, items)
    if table is not None and lists.size and not (lists.min() >= 0 and lists.max() < len(table)):
        raise ContextError(
            f"candidates range from {lists.min()} to {lists.max()}, expected positions in the {len(table)} items"
        )
    records = len(names)
    result = Replay(np.zeros(records, dtype=np.int64), np.zeros(records, dtype=np.bool_), paid)
    done, step = 0, 1024
    while done < records:
        part = slice(done, min(done + step, records))
        began = time.monotonic()
        with _whole():
            ids, rows = (table, lists[part]) if table is not None else distinct(lists[part])
            shown = ids.tolist() if table is None else ids
            rows = rows.astype(np.int64, copy=False)
            outcome = policy.run(Batch(names[part], rows, shown, paid[part], places[part]))
            result.choice[part], result.kept[part] = outcome.choice, outcome.kept
        done = part.stop
        if progress is not None:
            progress(done, records)
        # The size of a part only affects how often `progress` is called.
        took = time.monotonic() - began
        step = min(4 * step, 1 << 18) if took < PAUSE / 4 else max(step // 2, 1) if took > 2 * PAUSE else step
    return result


def _read_users(users: Any) -> Any:
    """Return the users as an array or list of ids."""
    if isinstance(users, np.ndarray):
        if users.ndim != 1:
            raise UserError(f"users have shape {users.shape}, expected one id per record")
        if users.dtype.kind in "iub":
            return users
        users = users.tolist()
    if isinstance(users, str | bytes) or not isinstance(users, Sequence):
        raise UserError(
            f"users is a {type(users).__name__}, expected an array or list of ids, one per record"
        )
    for user in users:
        check_user(user)
    return users


def _read_log(records: int, candidates: Any, served: Any, payoffs: Any) -> tuple[Array, Ints, Floats]:
    """Return the arrays of a log, checked. Candidates keep their type: a log may be large."""
    lists = _array("candidates", candidates)
    if lists.ndim != 2 or len(lists) != records or lists.shape[1] == 0:
        raise ContextError(
            f"candidates have shape {lists.shape}, expected ({records}, candidates): one list for each of the "
            f"{records} users"
        )
    if lists.dtype.kind not in "iu":
        raise ContextError(
            f"candidates are {lists.dtype}, expected integers: item ids, or positions in items=…"
        )
    places = _array("served", served)
    if places.shape != (records,) or (places.dtype.kind not in "iu" and records):
        raise ContextError(f"served is {places.dtype} {places.shape}, expected integers ({records},)")
    if records and not (places.min() >= 0 and places.max() < lists.shape[1]):
        raise ContextError(
            f"served ranges from {places.min()} to {places.max()}, expected places in lists of {lists.shape[1]}"
        )
    paid = _array("payoffs", payoffs)
    if paid.shape != (records,) or paid.dtype.kind not in "iufb":
        raise PayoffError(f"payoffs are {paid.dtype} {paid.shape}, expected numbers ({records},)")
    if records and not (paid.min() >= -1 and paid.max() <= 1):
        worst = paid[int(np.argmax(~((paid >= -1) & (paid <= 1))))]
        raise PayoffError(f"payoff is {worst!r}, expected a number in [-1, 1]; scale payoffs before learning")
    return lists, places.astype(np.int64, copy=False), paid.astype(np.float64, copy=False)


def _array(name: str, values: Any) -> Array:
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ContextError(f"{name} is not an array of numbers ({error})") from error


def _read_table(policy: Policy, items: "ActionsLike | None") -> Actions:
    """Return the table that candidates are positions in: features, ids or both; None if they are ids."""
    if items is not None:
        return read_for(policy, items)
    if policy.n_features is not None:
        raise ParameterError(
            f"this policy was made with n_features={policy.n_features}; give items=…, the features of each candidate"
        )
    return None


@contextmanager
def _whole() -> Iterator[None]:
    """Delay an interrupt to the end of the block, so that no record is partly learned."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[Any] = []
    before = signal.signal(signal.SIGINT, lambda *what: came.append(what))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came and callable(before):
        before(*came[0])
