"""The table of effects and the users' numbers in parts, for copies while they change (see `coterie.models.parts`)."""

from collections.abc import Container, Hashable, Iterable, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from coterie.errors import FileError
from coterie.models._kernels.hierarchy.effect_table import (
    ASIDE,
    CHANGED,
    FREED,
    PIECE,
    USED,
    WANTED,
    Columns,
    Table,
)
from coterie.models.files import Tensors, pack_ids, unpack_ids
from coterie.models.parts import Blocks

BLOCK = 1 << 11  # users' numbers in one block
# The columns of `Columns` and their types.
COLUMNS = {
    "keys": "u8", "kinds": "u1", "owners": "i4", "nexts": "i4", "touched": "i8", "precision": "f8", "pull": "f8",
    "free": "i4",
}  # fmt: skip


def make_columns(slots: int) -> Columns:
    """Return columns of zeros. They take no memory until they are written."""
    return Columns(**{name: np.zeros(slots, dtype) for name, dtype in COLUMNS.items()})


@final
class Pieces:
    """The table of effects, copied in pieces of PIECE effects. The compiled loops mark a piece that they change."""

    def __init__(self, slots: int) -> None:
        self.table = Table(
            np.zeros(1 << (2 * slots - 1).bit_length(), dtype=np.int32),
            *make_columns(slots),
            np.zeros(4, dtype=np.int64),
            np.zeros(-(-slots // PIECE), dtype=np.uint8),
            make_columns(0),
        )
        self._taking: list[int] = []
        self._room = 0  # how many effects `aside` has room for
        self._used = self._freed = 0  # at the begin of the copy

    def keys(self) -> list[str]:
        """Return the numbers of the pieces in use."""
        return [str(p) for p in range(-(-int(self.table.counts[USED]) // PIECE))]

    def part(self, key: str) -> bytes:
        """Return a piece: its columns one after the other, each up to the last used element."""
        counts = self.table.counts
        return _join(self.table, int(key), int(counts[USED]), int(counts[FREED]))

    def mark_all(self, changed: bool) -> None:
        """Mark every piece as changed, or as not changed."""
        self.table.marks[:] = CHANGED if changed else 0

    def make_room(self) -> None:
        """Allocate the room for pieces that change during a copy.

        The first access to so much memory takes a while, so another thread may call this before `begin`.
        """
        slots, used = len(self.table.keys), int(self.table.counts[USED])
        aside = self.table.aside if len(self.table.aside.keys) else make_columns(slots)
        if used > self._room:
            for column in aside:
                column[self._room : used] = 0
            self._room = used
            self.table = self.table._replace(aside=aside)

    def begin(self, kept: Container[str]) -> list[str]:
        """Begin a copy."""
        self.make_room()
        self._used, self._freed = int(self.table.counts[USED]), int(self.table.counts[FREED])
        marks = self.table.marks
        self._taking = [int(key) for key in self.keys() if marks[int(key)] or key not in kept]
        marks[:] = 0
        marks[self._taking] = WANTED
        return [str(p) for p in self._taking]

    def take(self, key: str) -> bytes:
        """Return a piece as it was at `begin`."""
        p, marks = int(key), self.table.marks
        source: Table | Columns = self.table.aside if marks[p] & ASIDE else self.table
        marks[p] &= CHANGED
        return _join(source, p, self._used, self._freed)

    def end(self, kept: bool) -> None:
        """End the copy."""
        self.table.marks[:] &= CHANGED
        if not kept:
            self.table.marks[self._taking] |= CHANGED
        self._taking = []


def _join(columns: Table | Columns, p: int, used: int, freed: int) -> bytes:
    first, end = p * PIECE, (p + 1) * PIECE
    found = [getattr(columns, name)[first : min(end, used)] for name in Columns._fields[:-1]]
    return b"".join(
        column.tobytes() for column in [*found, columns.free[first : max(first, min(end, freed))]]
    )


def split(bodies: Iterable[bytes], used: int, freed: int) -> Tensors:
    """Return the columns of the pieces that `part` wrote, in order."""
    whole = make_columns(used)
    expected, p = -(-used // PIECE), -1
    for p, body in enumerate(bodies):
        if p == expected:
            break
        first, place = p * PIECE, 0
        ends = [min(first + PIECE, used)] * (len(Columns._fields) - 1)
        columns: Sequence[NDArray[Any]] = whole
        for column, end in zip(columns, [*ends, max(first, min(first + PIECE, freed))], strict=True):
            size = (end - first) * column.itemsize
            if len(body) < place + size:
                raise FileError(f"piece {p} of the model has {len(body)} bytes, expected more")
            column[first:end] = np.frombuffer(body, column.dtype, end - first, place)
            place += size
        if len(body) != place:
            raise FileError(f"piece {p} of the model has {len(body)} bytes, expected {place}")
    if p + 1 != expected:
        raise FileError(f"the model has {'more' if p == expected else p + 1} pieces, expected {expected}")
    return {**whole._asdict(), "free": whole.free[:freed]}


@final
class UserNumbers:
    """The known users, each with a number that is never used again; copied in blocks of numbers."""

    def __init__(self) -> None:
        self.users: dict[Hashable, int] = {}  # in the order of their numbers
        self.next = 0
        self._ids: dict[int, list[Hashable]] = {}  # the users of each block, None for those who were dropped
        self._counts: dict[int, int] = {}  # how many users of a block are known
        self.parts = Blocks(self._blocks, self._encode)

    def add(self, user: Hashable) -> None:
        """Give a new user the next number."""
        if user in self.users:
            return
        block = self.next // BLOCK
        self.parts.touch(block)
        ids = self._ids.setdefault(block, [])
        ids += [None] * (self.next % BLOCK - len(ids))  # users dropped before a restart
        ids.append(user)
        self._counts[block] = self._counts.get(block, 0) + 1
        self.users[user] = self.next
        self.next += 1

    def drop(self, user: Hashable) -> int:
        """Forget a user, and return the number."""
        block = self.users[user] // BLOCK
        self.parts.touch(block)
        number = self.users.pop(user)
        self._ids[block][number % BLOCK] = None
        self._counts[block] -= 1
        if not self._counts[block]:
            del self._ids[block], self._counts[block]
        return number

    def mark_none(self) -> None:
        """Mark all blocks as not changed."""
        self.parts = Blocks(self._blocks, self._encode)

    def _blocks(self) -> Iterable[int]:
        return list(self._ids)

    def _encode(self, block: int) -> bytes:
        users = enumerate(self._ids.get(block, ()), block * BLOCK)
        known = [(number, user) for number, user in users if self.users.get(user) == number]
        numbers = np.array([number for number, _ in known], dtype=np.int64)
        return len(known).to_bytes(8, "little") + numbers.tobytes() + pack_ids(u for _, u in known).tobytes()


def make_numbers(users: Sequence[Hashable], numbers: Sequence[int], after: int) -> UserNumbers:
    """Return users with their numbers, given in the order of numbers; `after` is the next number."""
    made = UserNumbers()
    for user, number in zip(users, numbers, strict=True):
        made.next = number
        made.add(user)
    made.next = after
    return made


def join_numbers(bodies: Iterable[bytes], after: int) -> Tensors:
    """Return the users and numbers of the blocks that `UserNumbers` wrote, as `Effects.tensors` has them."""
    users: list[Hashable] = []
    numbers = []
    for body in bodies:
        n = int.from_bytes(body[:8], "little")
        if len(body) < 8 + 8 * n:
            raise FileError(f"a block of the model's users has {len(body)} bytes, expected more")
        numbers.append(np.frombuffer(body, np.int64, n, 8))
        users += unpack_ids({"users": np.frombuffer(body, np.uint8, offset=8 + 8 * n)}, "users")
    return {"users": pack_ids(users), "numbers": np.concatenate([*numbers, np.array([after])])}
