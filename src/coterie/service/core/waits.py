"""Waits: which decisions may still get a reward, and until when.

A wait is 25 bytes in arrays: the place of its decision in the log, when it ends, whose it is, and its state once the
event has left memory. All else about the decision is in the log.
"""

import heapq
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple, final

import msgspec
import numpy as np
from msgspec import Struct

from coterie.models.parts import Blocks

BLOCK = 1 << 9  # positions of one block
ROW = 32  # bytes of a wait, with its share of the block
PARTIAL = 400  # bytes of a sum that is not final, without the names of its rewards
NAME = 60  # bytes of a name, without its characters

# The state of a wait. The first says that the event itself, which is in memory, has it.
IN_MEMORY, WAITING, DEFERRED, REWARDED, OVER = range(5)

_encoder = msgspec.msgpack.Encoder()


class Partial(Struct, gc=False, array_like=True):
    """What an event that has left memory earned so far, if its rewards are summed."""

    value: float
    counted: int
    rewards: tuple[str, ...]  # names of the rewards

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return PARTIAL + sum(NAME + len(name) for name in self.rewards)


class Wait(NamedTuple):
    """One wait."""

    position: int
    deadline: int
    user: int
    state: int
    partial: Partial | None


class _Saved(Struct, array_like=True):
    positions: bytes
    deadlines: bytes
    users: bytes
    states: bytes
    partials: dict[int, Partial]


_decoder = msgspec.msgpack.Decoder(_Saved)


@final
class _Block:
    """The waits of neighbouring positions, in their order."""

    __slots__ = ("deadlines", "least", "live", "partials", "positions", "states", "users")

    def __init__(self) -> None:
        self.positions, self.deadlines, self.users = array("q"), array("q"), array("q")
        self.states = bytearray()
        self.partials: dict[int, Partial] = {}
        self.live = 0
        self.least = 2**62  # no wait ends before it

    def place(self, position: int) -> int | None:
        k = bisect_left(self.positions, position)
        there = k < len(self.positions) and self.positions[k] == position and self.states[k] != OVER
        return k if there else None

    def wait(self, k: int) -> Wait:
        position = self.positions[k]
        return Wait(position, self.deadlines[k], self.users[k], self.states[k], self.partials.get(position))

    def close(self, k: int) -> int:
        """End a wait, and return how many bytes are free now."""
        self.states[k] = OVER
        self.live -= 1
        partial = self.partials.pop(self.positions[k], None)
        return ROW + (0 if partial is None else partial.size)

    def ends(self) -> int:
        """Return when the first of its waits ends."""
        pairs = zip(self.deadlines, self.states, strict=True)
        return min(end for end, state in pairs if state != OVER)


@final
class Waits:
    """All waits, in blocks of neighbouring positions, so that a snapshot copies only the blocks that changed."""

    def __init__(self) -> None:
        self.bytes = 0  # about what all of them take
        self._blocks: dict[int, _Block] = {}  # oldest first
        self._ends: list[
            tuple[int, int]
        ] = []  # a heap of (least, block); entries with another `least` are old
        self.mark_none()

    def __len__(self) -> int:
        return sum(block.live for block in self._blocks.values())

    def __iter__(self) -> Iterator[Wait]:
        """Yield all waits, oldest first."""
        for block in self._blocks.values():
            for k, state in enumerate(block.states):
                if state != OVER:
                    yield block.wait(k)

    @property
    def next(self) -> int:
        """When to look at the waits again: none ends before it."""
        return self._ends[0][0] if self._ends else 2**62

    def add(self, position: int, deadline: int, user: int, state: int = IN_MEMORY) -> None:
        """Begin a wait, the newest."""
        number = position // BLOCK
        self.parts.touch(number)
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = _Block()
        block.positions.append(position)
        block.deadlines.append(deadline)
        block.users.append(user)
        block.states.append(state)
        block.live += 1
        self.bytes += ROW
        if deadline < block.least:
            block.least = deadline
            heapq.heappush(self._ends, (deadline, number))

    def get(self, position: int) -> Wait | None:
        """Return the wait of the decision at a position, if it goes on."""
        block = self._blocks.get(position // BLOCK)
        k = None if block is None else block.place(position)
        return None if block is None or k is None else block.wait(k)

    def put(self, position: int, state: int, partial: Partial | None = None) -> None:
        """Keep the state of an event that is not in memory; does nothing if its wait is over."""
        number = position // BLOCK
        block = self._blocks.get(number)
        k = None if block is None else block.place(position)
        if block is None or k is None:
            return
        self.parts.touch(number)
        block.states[k] = state
        before = block.partials.pop(position, None)
        if partial is not None:
            block.partials[position] = partial
        self.bytes += (0 if partial is None else partial.size) - (0 if before is None else before.size)

    def end(self, position: int) -> None:
        """End a wait early."""
        number = position // BLOCK
        block = self._blocks.get(number)
        k = None if block is None else block.place(position)
        if block is not None and k is not None:
            self.parts.touch(number)
            self.bytes -= block.close(k)
            if not block.live:
                del self._blocks[number]

    def oldest(self) -> Wait | None:
        """Return the wait of the oldest decision."""
        return next(iter(self), None)

    def of_user(self, user: int) -> list[int]:
        """Return the positions of a user's decisions that wait."""
        found: list[int] = []
        for block in self._blocks.values():
            for k in np.flatnonzero(np.frombuffer(block.users, np.int64) == user).tolist():
                if block.states[k] != OVER:
                    found.append(block.positions[k])
        return found

    def look(self, at: int) -> Iterator[Wait]:
        """Yield the waits that are over, and leave them."""
        for number in self._due(at):
            block = self._blocks[number]
            for k in _over(block, at):
                yield block.wait(k)

    def over(self, at: int) -> Iterator[Wait]:
        """End the waits that are over, and yield each; those of old decisions first, 512 positions at a time."""
        due = self._due(at)
        while self._ends and self._ends[0][0] <= at:
            heapq.heappop(self._ends)
        for number in due:
            block = self._blocks[number]
            self.parts.touch(number)
            ended = [block.wait(k) for k in _over(block, at)]
            for k in _over(block, at):
                self.bytes -= block.close(k)
            if block.live:
                block.least = block.ends()
                heapq.heappush(self._ends, (block.least, number))
            else:
                del self._blocks[number]
            yield from ended

    def _due(self, at: int) -> list[int]:
        """Return the blocks with a wait that may be over, the oldest first."""
        found, places = set(), [0]
        while places:  # down the heap
            k = places.pop()
            if k < len(self._ends) and self._ends[k][0] <= at:
                least, number = self._ends[k]
                block = self._blocks.get(number)
                if block is not None and block.least == least:
                    found.add(number)
                places += (2 * k + 1, 2 * k + 2)
        return sorted(found)

    def move(self, by: int) -> None:
        """Move the ends of all waits."""
        for number, block in self._blocks.items():
            self.parts.touch(number)
            block.deadlines = array("q", (np.frombuffer(block.deadlines, np.int64) + by).tobytes())
            block.least += by
        # All move alike, so the heap stays one.
        self._ends = [(end + by, number) for end, number in self._ends]

    def mark_none(self) -> None:
        """Say that nothing changed since the last snapshot."""
        self.parts = Blocks(lambda: list(self._blocks), self._encode)

    def _encode(self, number: int) -> bytes:
        block = self._blocks.get(number)
        if block is None:
            return _encoder.encode(_Saved(b"", b"", b"", b"", {}))
        live = [k for k, state in enumerate(block.states) if state != OVER]

        def column(values: "array[int]") -> bytes:
            return array("q", (values[k] for k in live)).tobytes()

        states = bytes(block.states[k] for k in live)
        columns = column(block.positions), column(block.deadlines), column(block.users)
        return _encoder.encode(_Saved(*columns, states, block.partials))

    def read(self, part: bytes) -> int:
        """Add a block that a snapshot holds, and return how many of its waits are of open events not in memory."""
        saved = _decoder.decode(part)
        if not saved.states:
            return 0
        block = _Block()
        block.positions, block.deadlines = array("q", saved.positions), array("q", saved.deadlines)
        block.users, block.states = array("q", saved.users), bytearray(saved.states)
        block.partials, block.live, block.least = saved.partials, len(saved.states), min(block.deadlines)
        number = block.positions[0] // BLOCK
        self._blocks[number] = block
        heapq.heappush(self._ends, (block.least, number))
        self.bytes += ROW * block.live + sum(partial.size for partial in block.partials.values())
        return saved.states.count(WAITING) + saved.states.count(DEFERRED)


def _over(block: _Block, at: int) -> list[int]:
    """Return the places of a block's waits that are over, in the order in which they ended."""
    pairs = enumerate(zip(block.deadlines, block.states, strict=True))
    return sorted(
        (k for k, (end, state) in pairs if end <= at and state != OVER), key=block.deadlines.__getitem__
    )
