"""A state that is copied part by part, all parts as of one moment.

`begin` marks the moment. After that, a part is saved before it changes, so that `take` returns each part as it was,
in any order and at any later time. It is known which parts changed since the last copy: the others need not be copied
again.
"""

from collections.abc import Callable, Container, Iterable
from typing import Protocol, final


class Parts(Protocol):
    """A state that can be copied part by part while it changes."""

    def keys(self) -> list[str]:
        """Return the names of all parts."""

    def part(self, key: str) -> bytes:
        """Return a part as it is now."""

    def make_room(self) -> None:
        """Allocate memory for the next copy; another thread may call this before `begin`."""

    def begin(self, kept: Container[str]) -> list[str]:
        """Begin a copy, and return the keys it must take: all but those in `kept` that did not change."""

    def take(self, key: str) -> bytes:
        """Return a part as it was at `begin`. Called once per part."""

    def end(self, kept: bool) -> None:
        """End the copy. If it was not kept, the parts it took count as changed again."""


@final
class Blocks:
    """The parts of a collection of Python objects: numbered blocks, which `encode` turns into bytes."""

    def __init__(self, blocks: Callable[[], Iterable[int]], encode: Callable[[int], bytes]) -> None:
        self._blocks, self._encode = blocks, encode
        self._changed: set[int] = set()
        self._wanted: set[int] = set()
        self._aside: dict[int, bytes] = {}
        self._taking: list[int] = []

    def touch(self, block: int) -> None:
        """Record that a block is about to change."""
        if block not in self._changed:
            if block in self._wanted:
                self._wanted.remove(block)
                self._aside[block] = self._encode(block)
            self._changed.add(block)

    def keys(self) -> list[str]:
        """Return the numbers of the blocks."""
        return [str(block) for block in self._blocks()]

    def part(self, key: str) -> bytes:
        """Return a block."""
        return self._encode(int(key))

    def make_room(self) -> None:
        """Do nothing: a block is small."""

    def begin(self, kept: Container[str]) -> list[str]:
        """Begin a copy."""
        self._taking = [block for block in self._blocks() if block in self._changed or str(block) not in kept]
        self._changed, self._wanted = set(), set(self._taking)
        return [str(block) for block in self._taking]

    def take(self, key: str) -> bytes:
        """Return a block as it was at `begin`."""
        block = int(key)
        aside = self._aside.pop(block, None)
        if aside is not None:
            return aside
        self._wanted.remove(block)
        return self._encode(block)

    def end(self, kept: bool) -> None:
        """End the copy."""
        if not kept:
            self._changed.update(self._taking)
        self._wanted, self._aside, self._taking = set(), {}, []
