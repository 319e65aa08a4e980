"""One shard of users whose facts are looked at elsewhere: it keeps their parts, and hands them out."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple, final

import numpy as np

from coterie.engines.placement import slot_of
from coterie.engines.shard import Numbered
from coterie.errors import FileError
from coterie.models.files import Tensors, pack_ids, take, unpack_ids
from coterie.models.hierarchy.remote_users import StoredUser

Known = tuple[Hashable, StoredUser]


class PeopleKind(NamedTuple):
    """A part is what it is: there is nothing to set."""

    def shard(self) -> type["PeopleShard"]:
        """Return what keeps parts."""
        return PeopleShard


@final
class PeopleShard(Numbered):
    """Some users' parts, by name and by row."""

    def __init__(self, kind: PeopleKind) -> None:
        super().__init__()
        self.kind = kind
        self.parts: dict[Hashable, StoredUser] = {}
        self._at: dict[int, Hashable] = {}  # the user of each row that is here
        self._by_slot: dict[int, dict[Hashable, None]] | None = None  # while users are moving

    # Questions.

    def find(self, users: Sequence[Hashable]) -> list[StoredUser | None]:
        """Return users' parts, None for strangers."""
        return [self.parts.get(user) for user in users]

    def between(self, first: int, last: int) -> list[Known]:
        """Return the users of rows [first, last) who are here."""
        rows = range(first, last) if last - first < len(self._at) else sorted(self._at)
        names = [self._at[row] for row in rows if first <= row < last and row in self._at]
        return [(name, self.parts[name]) for name in names]

    def rows(self) -> list[tuple[int, Hashable]]:
        """Return everybody, by row."""
        return sorted(self._at.items())

    def count(self) -> int:
        """Return how many users are here."""
        return len(self.parts)

    def in_slot(self, slot: int) -> list[Known]:
        """Return the users of a slot."""
        return [(name, self.parts[name]) for name in self._movers(slot)]

    def tensors(self) -> Tensors:
        """Return everybody's parts as arrays."""
        parts = list(self.parts.values())
        return {
            "users": pack_ids(self.parts),
            "rows": np.array([part.row for part in parts], dtype=np.int64),
            "lengths": np.array([len(part.data) for part in parts], dtype=np.int64),
            "facts": np.frombuffer(b"".join(part.data for part in parts), dtype=np.uint8),
        }

    def restore(self, tensors: Tensors) -> None:
        """Take over what `tensors` returned."""
        names = unpack_ids(tensors, "users")
        rows = take(tensors, "rows", "i", (len(names),)).tolist()
        ends = np.cumsum(take(tensors, "lengths", "i", (len(names),)))
        facts = take(tensors, "facts", "u", (None,)).tobytes()
        if len(facts) != (ends[-1] if len(ends) else 0):
            raise FileError(f"the parts of users have {len(facts)} bytes, expected {ends[-1:].sum()}")
        starts = [0, *ends.tolist()]
        self.parts, self._at, self._by_slot = {}, {}, None
        self._put([(n, StoredUser(rows[k], facts[starts[k] : starts[k + 1]])) for k, n in enumerate(names)])

    # Changes.

    def _put(self, parts: Sequence[Known]) -> None:
        for user, part in parts:
            self.parts[user] = part
            self._at[part.row] = user
            if self._by_slot is not None:
                self._by_slot.setdefault(slot_of(user), {})[user] = None

    def _drop(self, user: Hashable) -> None:
        del self._at[self.parts.pop(user).row]

    def _renumber(self, last: int, row: int) -> None:
        """Let the user of the last row take another."""
        name = self._at.pop(last)
        self.parts[name] = self.parts[name]._replace(row=row)
        self._at[row] = name

    def _drop_slot(self, slot: int) -> None:
        for user in self._movers(slot):
            self._drop(user)

    # While users are moving, it is known who is in which slot.

    def _movers(self, slot: int) -> list[Hashable]:
        if self._by_slot is None:
            self._by_slot = {}
            for user in self.parts:
                self._by_slot.setdefault(slot_of(user), {})[user] = None
        return [user for user in self._by_slot.get(slot, ()) if user in self.parts]

    def settle(self) -> None:
        """Forget who is in which slot: the moving is over."""
        self._by_slot = None
