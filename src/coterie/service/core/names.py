"""Users' names and numbers: a table beside the log, whose records have numbers only."""

from collections.abc import Mapping
from typing import final


@final
class Names:
    """Who has which number, and which rows of the table changed since the last `changes`."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.ids: dict[int, str] = {}  # the other way round
        self._named: dict[int, str] = {}
        self._gone: list[int] = []

    def put(self, number: int, user: str) -> None:
        """Give a new user a number."""
        if user not in self.numbers:
            self.numbers[user], self.ids[number] = number, user
            self._named[number] = user

    def drop(self, number: int) -> None:
        """Forget who had a number."""
        self._gone.append(number)
        self._named.pop(number, None)
        name = self.ids.pop(number, None)
        if name is not None and self.numbers[name] == number:  # else the user is back, with another number
            del self.numbers[name]

    def take(self, users: Mapping[int, str]) -> None:
        """Add rows that the table has already."""
        self.ids.update(users)
        self.numbers.update({name: number for number, name in users.items()})

    def changes(self) -> tuple[dict[int, str], list[int]]:
        """Return new users with their numbers, and numbers without a user, since the last call."""
        named, gone, self._named, self._gone = self._named, self._gone, {}, []
        return named, gone
