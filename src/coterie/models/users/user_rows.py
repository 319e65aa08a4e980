"""The users that a representation knows: those with a row, and those who were only added.

A user gets a row with the first update. A user who was only added is idle: M = I and w = 0, so no row is needed.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from coterie.arrays import Floats, Ints
from coterie.errors import FileError
from coterie.models.batches import names_of
from coterie.models.checks import check_user
from coterie.models.files import Tensors, pack_ids, unpack_ids
from coterie.models.protocol import NOBODY, ROUNDING, Eligible, View
from coterie.models.roster import Roster


class Numbered(NamedTuple):
    """Users as a compiled loop takes them: the idle ones, then all users of the rounds."""

    names: list[Hashable]
    who: Ints  # (rounds,) positions in `names`
    row_of: Ints  # (names,) -1 if there is no row yet; the loop writes new rows
    known: NDArray[np.bool_]  # (names,)


@final
class UserRows:
    """Names, rows and idle users. `eligible` says whether idle users may be neighbours of others."""

    def __init__(self, eligible: Eligible) -> None:
        self.eligible = eligible
        self._roster = Roster()
        self._idle: dict[Hashable, None] = {}

    def row(self, user: Hashable) -> int:
        """Return a user's row, -1 if there is none."""
        return self._roster.row(user)

    @property
    def names(self) -> list[Hashable]:
        """The user of each row."""
        return self._roster.names

    @property
    def n_rows(self) -> int:
        """How many users have a row."""
        return len(self._roster)

    @property
    def n_idle(self) -> int:
        """How many users have none."""
        return len(self._idle)

    @property
    def users(self) -> list[Hashable]:
        """All users: those with a row first."""
        return [*self._roster.names, *self._idle]

    def __contains__(self, user: Hashable) -> bool:
        return user in self._roster or user in self._idle

    def __len__(self) -> int:
        return len(self._roster) + len(self._idle)

    def add(self, user: Hashable) -> None:
        """Register a user."""
        check_user(user)
        if user not in self._roster:
            self._idle.setdefault(user)

    def give_row(self, user: Hashable) -> int:
        """Give the next row to a user who has none."""
        self._idle.pop(user, None)
        return self._roster.join(user)

    def swap(self, row: int, other: int) -> None:
        """Let two users exchange their rows."""
        self._roster.swap(row, other)

    def drop(self, user: Hashable) -> int:
        """Forget a user; return the row, which the user of the last row takes over, or -1 if there was none."""
        check_user(user)
        if user in self._idle:
            del self._idle[user]
            return -1
        return self._roster.leave(user)

    # Users without a row, as neighbours.

    def without_row(self, user: Hashable) -> list[Hashable]:
        """Return the users without a row who may be neighbours of `user`, including `user` if it has none."""
        idle = [*self._idle] if self.eligible == "all" else []
        return [*idle, user] if self._is_extra(user) else idle

    def count_without_row(self, user: Hashable) -> int:
        """Return how many `without_row` lists."""
        return (len(self._idle) if self.eligible == "all" else 0) + self._is_extra(user)

    def _is_extra(self, user: Hashable) -> bool:
        """Return whether a user without a row counts only in its own neighbourhood."""
        return (
            user is not NOBODY
            and user not in self._roster
            and (self.eligible == "updated" or user not in self._idle)
        )

    def near_without_row(self, user: Hashable, spread: Floats, view: View, scale: float) -> Ints:
        """Return how many users without a row are neighbours for each candidate. All have this `spread`."""
        near = np.abs(view.estimate) <= scale * (spread + view.spread) + ROUNDING
        return self.count_without_row(user) * near.astype(np.int64)

    # Compiled loops.

    def number(self, users: Sequence[Hashable]) -> Numbered:
        """Return the users of some rounds, and all idle users, as arrays."""
        asked = names_of(users)
        names = list(self._idle | dict.fromkeys(asked))
        place = {name: k for k, name in enumerate(names)}
        return Numbered(
            names,
            np.array([place[user] for user in asked], dtype=np.int64),
            np.array([self.row(name) for name in names], dtype=np.int64),
            np.array([name in self for name in names], dtype=np.bool_),
        )

    def give_rows(self, numbered: Numbered) -> None:
        """Give users the rows that a compiled loop wrote."""
        new = np.flatnonzero(numbered.row_of >= self.n_rows)
        for k in new[np.argsort(numbered.row_of[new])].tolist():
            self.give_row(numbered.names[k])

    # Files.

    def pack(self, users: Sequence[Hashable]) -> tuple[Ints, Tensors]:
        """Return the rows of some users, and the names as arrays: of those with a row, and of the others."""
        names = [user for user in users if user in self._roster]
        idle = [user for user in users if user in self._idle]
        rows = np.array([self.row(name) for name in names], dtype=np.int64)
        return rows, {"updated": pack_ids(names), "idle": pack_ids(idle)}

    def unpack(self, part: Tensors) -> tuple[list[Hashable], list[Hashable]]:
        """Return the names that `pack` wrote, if none of them is known."""
        names, idle = unpack_ids(part, "updated"), unpack_ids(part, "idle")
        for user in (*names, *idle):
            if user in self:
                raise FileError(f"user {user!r} is known already, so cannot be taken over")
        if not set(names).isdisjoint(idle):
            raise FileError("a user in the model file is both updated and idle")
        return names, idle

    def put(self, names: Sequence[Hashable], idle: Sequence[Hashable]) -> None:
        """Register users: each of `names` gets the next row."""
        for name in names:
            self.give_row(name)
        self._idle.update(dict.fromkeys(idle))
