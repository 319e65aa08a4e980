"""The users that a representation knows: those with a row, and those who were only added.

A user gets a row with the first update. A user who was only added is idle: M = I and w = 0, so no row is needed.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import final

import numpy as np

from coterie.arrays import Bools, Floats, Ints
from coterie.errors import FileError
from coterie.models.actions import Actions
from coterie.models.batches import Batch, Outcome, outcome_of
from coterie.models.files import Tensors, pack_ids, unpack_ids
from coterie.models.protocol import Near, View
from coterie.models.roster import Roster
from coterie.models.rows.chunks import Chunk, Game


@final
class UserRows:
    """Names, rows and idle users."""

    def __init__(self) -> None:
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
    def users(self) -> list[Hashable]:
        """All users: those with a row first."""
        return [*self._roster.names, *self._idle]

    def __contains__(self, user: Hashable) -> bool:
        return user in self._roster or user in self._idle

    def __len__(self) -> int:
        return len(self._roster) + len(self._idle)

    def add(self, user: Hashable) -> None:
        """Register a user."""
        if user not in self._roster:
            self._idle.setdefault(user)

    def give_row(self, user: Hashable) -> int:
        """Give the next row to a user who has none."""
        self._idle.pop(user, None)
        return self._roster.join(user)

    def drop(self, user: Hashable) -> int:
        """Forget a user; return the row, which the user of the last row takes over, or -1 if there was none."""
        if user in self._idle:
            del self._idle[user]
            return -1
        return self._roster.leave(user)

    def lacks_row(self, user: Hashable) -> bool:
        """Return whether a user has no row, and so counts only in its own neighbourhood."""
        return user not in self._roster

    def play(
        self, batch: Batch, items: Actions, named: Ints, learned: int, loop: Callable[[Game], None]
    ) -> Outcome:
        """Play checked rounds after `learned` payoffs. `loop` makes room and plays as many as there is room for."""
        chunk = Chunk(batch, self.row)
        chunk.play(items, named, learned, self.n_rows, loop)
        for user in chunk.joined:
            self.give_row(user)
        return outcome_of(chunk.rounds)

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


class RowModels:
    """What representations share that have a row for each updated user."""

    _known: UserRows

    def add(self, user: Hashable) -> None:
        """Register a user."""
        self._known.add(user)

    @property
    def users(self) -> Sequence[Hashable]:
        """The known users: the updated ones first."""
        return self._known.users

    def _with_user(self, user: Hashable, view: View, sums: Floats) -> Near:
        """Return sums over the neighbours with a row, (3, candidates), and the user, who may have none."""
        alone = int(self._known.lacks_row(user))
        return Near(sums[0].astype(np.int64) + alone, sums[1], sums[2] + alone * view.spread)

    def _named(self, user: Hashable, near: Bools) -> list[Hashable]:
        """Return the users of the rows that are near, and the user."""
        found = [self._known.names[row] for row in np.flatnonzero(near)]
        return [*found, user] if self._known.lacks_row(user) else found
