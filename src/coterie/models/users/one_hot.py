"""User models over item ids, as classes of users with equal histories.

On item k a user is only a pair (times, total payoff): w = total / (1 + times), spread = 1 / √(1 + times).
Users with equal pairs are interchangeable for that item, so a neighbourhood is a scan over the classes of
equal pairs, and a shared update moves whole classes. Users without a payoff for the item are in the class
(0, 0), which is not stored. The classes are in `_kernels/users/histories.py`; here ids become rows and columns of
its arrays.
"""

from collections.abc import Hashable, Sequence
from typing import Any, final

import numpy as np

from coterie.arrays import Floats, Ints
from coterie.errors import UserError
from coterie.models._kernels.users import one_hot as kernel
from coterie.models._kernels.users import one_hot_run as loop
from coterie.models._kernels.users.history_arrays import (
    ENOUGH,
    NEAR,
    NONE,
    ROOM_USERS,
    ROWS,
    VERSION,
    Histories,
    empty_state,
)
from coterie.models.actions import ActionsLike
from coterie.models.batches import Batch, Outcome, Rule, as_rounds, outcome_of, positions
from coterie.models.checks import read_items
from coterie.models.files import Tensors
from coterie.models.protocol import Near, View
from coterie.models.users import one_hot_files


@final
class OneHot:
    """One independent mean per user and item, shrunk to zero as ridge regression does."""

    def __init__(self) -> None:
        self._rows: dict[Hashable, int] = {}  # the known users
        self._columns: dict[Hashable, int] = {}  # the items with a payoff
        self._free_columns: list[int] = []
        self._state = empty_state()

    def read(self, contexts: ActionsLike) -> list[Hashable]:
        """Check candidates and return them as a list of ids."""
        return read_items(contexts)

    def view(self, user: Hashable, contexts: Sequence[Hashable]) -> View:
        """Return the user's own estimates and spreads."""
        estimate, spread = np.empty(len(contexts)), np.empty(len(contexts))
        kernel.view(tuple(self._state), self._row(user), self._find(contexts), estimate, spread)
        return View(estimate, spread)

    def gather(self, user: Hashable, contexts: Sequence[Hashable], view: View, scale: float) -> Near:
        """Sum over each candidate's neighbours, class by class."""
        members, sums = self._gather(user, contexts, view, scale)
        return Near(members, sums[0], sums[1])

    def chances(
        self, user: Hashable, contexts: Sequence[Hashable], view: View, scale: float, seed: int
    ) -> tuple[Near, Floats]:
        """Return what `gather` does, and the probability that each candidate's average draw is the largest.

        On an item the users' posteriors are independent normals of deviation scale · spread, so their average is
        a normal too, and the probabilities are exact.
        """
        members, sums = self._gather(user, contexts, view, scale)
        listed: dict[Hashable, int] = {}
        columns = np.array([listed.setdefault(item, len(listed)) for item in contexts], dtype=np.int64)
        found = np.empty((4, len(columns)))
        loop.write_chances(columns, members, sums, scale, *found)
        return Near(members, sums[0], sums[1]), found[2]

    def neighbours(
        self, user: Hashable, contexts: Sequence[Hashable], view: View, scale: float
    ) -> list[Hashable]:
        """Return the neighbours for the first candidate."""
        near = np.zeros(self._state.counts[ROWS], dtype=np.bool_)
        own = (float(view.estimate[0]), float(view.spread[0]))
        kernel.near_users(tuple(self._state), self._columns.get(contexts[0], NONE), own, scale, near)
        row = self._row(user)
        stranger = row == NONE or (row >= 0 and self._state.users["order"][row] < 0)
        return [name for name, row in self._rows.items() if near[row]] + ([user] if stranger else [])

    def update(self, user: Hashable, context: Hashable, payoff: float) -> int:
        """Update one user."""
        row, column = self._make_row(user), self._make_column(context)
        while (code := kernel.update(tuple(self._state), row, column, payoff)) != ENOUGH:
            self._grow(code)
        return 1

    def share(
        self, user: Hashable, context: Hashable, payoff: float, view: View, scale: float, limit: float
    ) -> int:
        """Update the certain neighbours."""
        row = self._make_row(user)
        column = self._make_column(context)
        own = (float(view.estimate[0]), float(view.spread[0]))
        while True:
            code, updated = kernel.share(tuple(self._state), row, column, payoff, own, scale, limit)
            if code == ENOUGH:
                break
            self._grow(code)
        if not self._state.items["touched"][column]:  # no user was updated
            self._drop_column(context)
        return updated

    def run(self, batch: Batch, rule: Rule, rng: np.random.Generator) -> Outcome:
        """Play checked rounds of CAB in one compiled loop."""
        names, who = positions(batch.users)
        row_of = np.fromiter((self._rows.get(name, NONE) for name in names), np.int64, len(names))
        new_users = np.flatnonzero(row_of < 0)
        new_items = [item for item in dict.fromkeys(batch.items) if item not in self._columns]
        columns = np.array([self._make_column(item) for item in batch.items], dtype=np.int64)
        rounds = as_rounds(batch, who)
        scratch = tuple(loop.make_scratch(rounds.candidates.shape[1]))
        t, code, learned = 0, ENOUGH, rule.learned
        while t < len(who):
            now = tuple(rule._replace(learned=learned))
            t, code, learned = loop.run(
                tuple(self._state), row_of, columns, tuple(rounds), now, rng, t, code != ENOUGH, scratch
            )
            if code != ENOUGH:
                self._grow(code)
        self._keep({names[i]: int(row_of[i]) for i in new_users if row_of[i] >= 0}, new_items)
        return outcome_of(rounds)

    def add(self, user: Hashable) -> None:
        """Register a user."""
        self._make_row(user)

    def drop(self, user: Hashable) -> None:
        """Forget a user, on every item."""
        if user not in self._rows:
            raise UserError(f"user {user!r} is not known, so cannot be dropped")
        kernel.drop(tuple(self._state), self._rows[user], len(self._columns) + len(self._free_columns))
        del self._rows[user]
        touched = self._state.items["touched"]
        for item in [item for item, column in self._columns.items() if not touched[column]]:
            self._drop_column(item)

    @property
    def users(self) -> Sequence[Hashable]:
        """The known users."""
        return list(self._rows)

    def tensors(self) -> Tensors:
        """Return the whole state: one entry for each user and item that learned alone, and the classes."""
        return one_hot_files.pack(self._state, self._rows, self._columns)

    def restore(self, tensors: Tensors) -> None:
        """Replace the whole state."""
        names, items, state = one_hot_files.unpack(tensors)
        self._rows = {name: row for row, name in enumerate(names)}
        self._columns = {item: column for column, item in enumerate(items)}
        self._free_columns = []
        self._state = state

    def _row(self, user: Hashable) -> int:
        return self._rows.get(user, NONE)

    def _find(self, contexts: Sequence[Hashable]) -> Ints:
        return np.array([self._columns.get(item, NONE) for item in contexts], dtype=np.int64)

    def _gather(
        self, user: Hashable, contexts: Sequence[Hashable], view: View, scale: float
    ) -> tuple[Ints, Floats]:
        members, sums = np.empty(len(contexts), dtype=np.int64), np.empty((3, len(contexts)))
        columns, own = self._find(contexts), (view.estimate, view.spread)
        kernel.gather(
            tuple(self._state), self._row(user), columns, own, scale, members, sums, np.empty(1, NEAR)
        )
        return members, sums

    def _make_row(self, user: Hashable) -> int:
        """Return the user's row, made if there is none yet."""
        row = self._row(user)
        if row < 0:
            while (row := kernel.make_row(tuple(self._state))) < 0:
                self._grow(ROOM_USERS)
            self._rows[user] = row
        return row

    def _make_column(self, item: Hashable) -> int:
        """Return the item's column, made if there is none yet."""
        column = self._columns.get(item)
        if column is None:
            column = self._free_columns.pop() if self._free_columns else len(self._columns)
            if column == len(self._state.items):
                self._grow(Histories._fields.index("items"))
            self._state.counts[VERSION] += 1
            self._state.items[column] = (0, NONE, self._state.counts[VERSION], NONE, 0, 0, NONE, 0, 0)
            self._columns[item] = column
        return column

    def _drop_column(self, item: Hashable) -> None:
        column = self._columns.pop(item)
        kernel.drop_item(tuple(self._state), column)
        self._free_columns.append(column)

    def _keep(self, new_users: dict[Hashable, int], new_items: list[Hashable]) -> None:
        """Keep the new users and items that a loop has learned about, in the order of their first payoffs."""
        order, born = self._state.users["order"], self._state.items["born"]
        for name in sorted(new_users, key=lambda name: int(order[new_users[name]])):
            self._rows[name] = new_users[name]
        for item in sorted(new_items, key=lambda item: int(born[self._columns[item]])):
            if born[self._columns[item]] >= 0:
                self._columns[item] = self._columns.pop(item)
            else:
                self._drop_column(item)

    def _grow(self, code: int) -> None:
        """Double one of the arrays, and those of the same length."""
        name = Histories._fields[code]
        beside = {"classes": ["near"], "items": ["near_untouched"]}.get(name, [])
        self._state = self._state._replace(
            **{field: doubled(self._state, field) for field in [name, *beside]}
        )


def doubled(state: Histories, field: str) -> Any:
    """Return an array's content in one of twice the length."""
    old = getattr(state, field)
    new = np.zeros(2 * len(old), old.dtype)
    new[: len(old)] = old
    return new
