"""The known users, numbered from 0 without gaps: the number is the user's row in the models."""

from collections.abc import Hashable, Iterable
from typing import final

from coterie.errors import UserError

# Dictionaries: resizing one with a million names takes 50 ms, one with a few thousand almost no time.
PARTS = 256


@final
class Roster:
    """Names and their rows."""

    def __init__(self, names: Iterable[Hashable] = ()) -> None:
        self.names: list[Hashable] = []
        self._parts: list[dict[Hashable, int]] = [{} for _ in range(PARTS)]
        for name in names:
            self.join(name)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, user: Hashable) -> bool:
        return user in self._part(user)

    def _part(self, user: Hashable) -> dict[Hashable, int]:
        mixed = hash(user)  # of whole numbers, the number itself: multiples of 256 must not share a part
        return self._parts[(mixed ^ mixed >> 8 ^ mixed >> 20) % PARTS]

    def row(self, user: Hashable) -> int:
        """Return a user's row, -1 if unknown."""
        return self._part(user).get(user, -1)

    def join(self, user: Hashable) -> int:
        """Give a new user the next row."""
        row = self._part(user)[user] = len(self.names)
        self.names.append(user)
        return row

    def leave(self, user: Hashable) -> int:
        """Forget a user and return the row, which the last user takes over."""
        if user not in self:
            raise UserError(f"user {user!r} is not known, so cannot be dropped")
        row, name = self._part(user).pop(user), self.names.pop()
        if row != len(self.names):
            self._place(name, row)
        return row

    def leave_in_order(self, user: Hashable) -> int:
        """Forget a user and return the row; the users after it move up by one."""
        if user not in self:
            raise UserError(f"user {user!r} is not known, so cannot be dropped")
        row = self._part(user).pop(user)
        del self.names[row]
        for later, name in enumerate(self.names[row:], start=row):
            self._place(name, later)
        return row

    def _place(self, name: Hashable, row: int) -> None:
        self.names[row] = name
        self._part(name)[name] = row
