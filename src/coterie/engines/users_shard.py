"""One shard of users whose state is used in another process: it keeps their parts and returns them."""

from collections.abc import Hashable, Sequence
from typing import final

import numpy as np

from coterie.engines.shard import AnyShard
from coterie.errors import FileError
from coterie.models.files import Tensors, pack_ids, take, unpack_ids
from coterie.models.hierarchy.remote_users import StoredUser

Known = tuple[Hashable, StoredUser]


@final
class UsersShard(AnyShard):
    """Some users' parts, by name and by row."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: dict[Hashable, StoredUser] = {}
        self._at: dict[int, Hashable] = {}  # the user of each row of this shard

    def find(self, users: Sequence[Hashable]) -> list[StoredUser | None]:
        """Return users' parts, None for unknown users."""
        return [self.parts.get(user) for user in users]

    def between(self, first: int, last: int) -> list[Known]:
        """Return the users with rows in [first, last)."""
        rows = range(first, last) if last - first < len(self._at) else sorted(self._at)
        names = [self._at[row] for row in rows if first <= row < last and row in self._at]
        return [(name, self.parts[name]) for name in names]

    def rows(self) -> list[tuple[int, Hashable]]:
        """Return all users, by row."""
        return sorted(self._at.items())

    def users(self) -> list[Hashable]:
        return list(self.parts)

    def knows(self, user: Hashable) -> bool:
        return user in self.parts

    def in_slot(self, slot: int) -> list[Known]:
        """Return the users of a slot."""
        return [(name, self.parts[name]) for name in self._in_slot(slot)]

    def tensors(self) -> Tensors:
        parts = list(self.parts.values())
        return {
            "users": pack_ids(self.parts),
            "rows": np.array([part.row for part in parts], dtype=np.int64),
            "lengths": np.array([len(part.data) for part in parts], dtype=np.int64),
            "facts": np.frombuffer(b"".join(part.data for part in parts), dtype=np.uint8),
        }

    def restore(self, tensors: Tensors) -> None:
        names = unpack_ids(tensors, "users")
        rows = take(tensors, "rows", "i", (len(names),)).tolist()
        ends = np.cumsum(take(tensors, "lengths", "i", (len(names),)))
        facts = take(tensors, "facts", "u", (None,)).tobytes()
        if len(facts) != (ends[-1] if len(ends) else 0):
            raise FileError(f"the parts of users have {len(facts)} bytes, expected {ends[-1:].sum()}")
        starts = [0, *ends.tolist()]
        self.parts, self._at, self._by_slot = {}, {}, None
        self._put([(n, StoredUser(rows[k], facts[starts[k] : starts[k + 1]])) for k, n in enumerate(names)])

    def _put(self, parts: Sequence[Known]) -> None:
        for user, part in parts:
            self.parts[user] = part
            self._at[part.row] = user
            self._note(user)

    def _drop(self, user: Hashable) -> None:
        del self._at[self.parts.pop(user).row]

    def _renumber(self, last: int, row: int) -> None:
        """Give the user of the last row another row."""
        name = self._at.pop(last)
        self.parts[name] = self.parts[name]._replace(row=row)
        self._at[row] = name
