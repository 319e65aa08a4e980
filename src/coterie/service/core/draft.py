"""Records that are planned, and are applied once the log has them."""

from collections.abc import Mapping
from typing import Any, final

from coterie.data.logs.records import Forget, Rank, Record, Tick

Mark = tuple[int, tuple[int, ...], bool]


class PostponedError(Exception):
    """What is planned depends on a record of the same draft, so it has to wait until that is applied."""


@final
class Draft:
    """The next batch of the log. All its records have the time `at`."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.records: list[Record] = []
        self.encoded: list[bytes] = []
        self.named: dict[int, str] = {}  # new users
        self.fixes = False  # whether what others plan meanwhile would not hold after it: see Append
        self.ticked = False  # whether the waits that are over by then end with it
        self._numbers: dict[str, int] = {}  # of new users
        self._events: dict[str, None] = {}  # that it is about
        self._decided: dict[int, None] = {}  # users with a decision in it

    def number_of(self, user: str, after: int) -> int:
        """Return the number of a new user; `after` is that of the first one."""
        return self._numbers.get(user, after + len(self._numbers))

    def once(self, event: str) -> None:
        """Raise if there is something about this event already."""
        if event in self._events:
            raise PostponedError
        self._events[event] = None

    def check_looks(self, user: int) -> None:
        """Raise if there is a decision for this user already, which is a look that frequency caps count."""
        if user in self._decided:
            raise PostponedError

    def add(self, record: Record, encoded: bytes, named: Mapping[int, str]) -> None:
        """Take a record, and the names of users in it."""
        self.records.append(record)
        self.encoded.append(encoded)
        self.ticked = self.ticked or isinstance(record, Tick)
        if isinstance(record, Rank):
            self._decided[record.user] = None
        for number, name in named.items():
            if name not in self._numbers:
                self._numbers[name] = number
                self.named[number] = name

    def mark(self) -> Mark:
        """Return where it ends now, for `cut`."""
        return len(self.records), tuple(map(len, self._tables())), self.ticked

    def cut(self, mark: Mark) -> None:
        """Take back what was added since a mark."""
        records, sizes, self.ticked = mark
        del self.records[records:], self.encoded[records:]
        for table, size in zip(self._tables(), sizes, strict=True):
            while len(table) > size:
                table.popitem()

    def _tables(self) -> tuple[dict[Any, Any], ...]:
        return self.named, self._numbers, self._events, self._decided

    @property
    def decisions(self) -> list[Rank]:
        """The decisions in it."""
        return [record for record in self.records if isinstance(record, Rank)]

    @property
    def forgotten(self) -> list[int]:
        """The users that are forgotten on demand."""
        return [record.user for record in self.records if isinstance(record, Forget)]
