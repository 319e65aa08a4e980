"""Who is known, numbered from 0 without gaps: the number is the user's row in the models."""

from collections.abc import Hashable, Iterable
from typing import final

from coterie.errors import UserError


@final
class Roster:
    """Names and their rows."""

    def __init__(self, names: Iterable[Hashable] = ()) -> None:
        self.names: list[Hashable] = list(names)
        self.rows = {name: row for row, name in enumerate(self.names)}

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, user: Hashable) -> bool:
        return user in self.rows

    def row(self, user: Hashable) -> int:
        """Return a user's row, -1 for a stranger."""
        return self.rows.get(user, -1)

    def join(self, user: Hashable) -> int:
        """Give a stranger the next row."""
        row = self.rows[user] = len(self.names)
        self.names.append(user)
        return row

    def leave(self, user: Hashable) -> int:
        """Forget a user and return the row, which the last user takes over."""
        if user not in self.rows:
            raise UserError(f"user {user!r} is not known, so cannot be dropped")
        row, name = self.rows.pop(user), self.names.pop()
        if row != len(self.names):
            self.names[row], self.rows[name] = name, row
        return row
