"""A log as arrays: users, shown items and payoffs."""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from coterie.arrays import Floats, Ints
from coterie.data.files import need
from coterie.errors import ParameterError
from coterie.models.actions import Actions
from coterie.models.batches import Batch, positions
from coterie.models.candidates import project

# Vectors with more features are projected on this many directions, enough for distances and neighbourhoods.
MOST_FEATURES = 40


@final
@dataclass(frozen=True)
class Records:
    """Records in time order. With features, `items` are rows of `vectors`; else item ids, counted from 0."""

    users: Ints  # (records,) counted from 0
    items: Ints  # (records,)
    payoffs: Floats  # (records,)
    names: Sequence[Hashable]  # of the users
    vectors: Floats | None = None  # (items, n_features), none longer than 1
    notes: tuple[str, ...] = ()  # changes made while reading

    @property
    def n_users(self) -> int:
        """How many users there are."""
        return len(self.names)

    @property
    def n_items(self) -> int:
        """How many different items were shown."""
        return int(self.items.max()) + 1 if self.vectors is None else len(self.vectors)

    @property
    def one_hot(self) -> bool:
        """Whether items have ids only, without features."""
        return self.vectors is None

    @property
    def per_user(self) -> Ints:
        """How many records each user has: (n_users,)."""
        return np.bincount(self.users, minlength=self.n_users).astype(np.int64)

    def of_some_users(self, most: int, rng: np.random.Generator) -> "Records":
        """Return the records of `most` users drawn at random, or of all if there are fewer."""
        if self.n_users <= most:
            return self
        chosen = np.sort(rng.choice(self.n_users, most, replace=False))
        code = np.full(self.n_users, -1)
        code[chosen] = np.arange(most)
        kept = code[self.users] >= 0
        names = [self.names[user] for user in chosen]
        users = code[self.users[kept]]
        return Records(users, self.items[kept], self.payoffs[kept], names, self.vectors, self.notes)


def shuffled(key: Ints, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Return all positions sorted by `key`, those of equal keys in random order, and each one's rank among these."""
    order = rng.permutation(len(key))
    order = order[np.argsort(key[order], kind="stable")]
    return order, np.arange(len(order)) - np.searchsorted(key[order], key[order])


def make_records(users: Any, items: Any, payoffs: Any, vectors: Any = None) -> Records:
    """Return records from users, items and payoffs, which were checked when they were read.

    With `vectors`, items are its rows. Those with more than 40 features are projected on the first 40 principal
    directions.
    """
    names, user = positions(list(users))
    paid = np.asarray(payoffs, dtype=np.float64)
    if not len(paid):
        raise ParameterError("the log holds no records")
    if vectors is None:
        _, item = positions(list(items))
        return Records(user, item, paid, names)
    item, matrix = np.asarray(items, dtype=np.int64), np.array(vectors, dtype=np.float64)
    if matrix.shape[1] <= MOST_FEATURES:
        return Records(user, item, paid, names, matrix)
    whole, held = float((matrix**2).sum()), np.linalg.eigh(matrix.T @ matrix)[1][:, -MOST_FEATURES:]
    matrix = matrix @ held
    share = float((matrix**2).sum()) / whole if whole else 1.0
    note = f"Of {len(held)} features, {MOST_FEATURES} directions are used; they hold {share:.0%} of them."
    return Records(user, item, paid, names, matrix, (note,))


def from_blocks(blocks: Iterable[Batch]) -> Records:
    """Return the records of a dataset's rounds: served items, or every candidate if all payoffs are known."""
    users: list[Hashable] = []
    items: list[Ints] = []
    payoffs: list[Floats] = []
    names: Actions = None
    for block in blocks:
        names, (rounds, width) = project(block.items, "features"), block.candidates.shape
        if block.served is not None:
            items.append(block.candidates[np.arange(rounds), block.served])
            users += block.users.tolist()
        else:
            items.append(block.candidates.ravel())
            users += np.repeat(block.users, width).tolist()
        payoffs.append(block.payoffs.ravel())
    if not users:
        raise ParameterError("the log holds no records")
    shown = np.concatenate(items)
    if isinstance(names, np.ndarray):
        return make_records(users, shown, np.concatenate(payoffs), names)
    return make_records(users, shown.tolist(), np.concatenate(payoffs))


def read_log(given: Any) -> Records:
    """Read a log as `open_log` does: a file or a table with the columns user, payoff, and item or features."""
    need("polars", "reading a log")
    from coterie.data.logs.log import path_of
    from coterie.data.logs.log_file import read_log_file

    log = read_log_file(path_of(given))
    users = log.users.tolist()
    if log.has_features:
        found = make_records(users, log.served, log.payoffs, log.items)
    else:
        found = make_records(users, [log.items[k] for k in log.served.tolist()], log.payoffs)
    return replace(found, notes=(*log.notes, *found.notes))
