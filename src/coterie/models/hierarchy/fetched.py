"""A learned prior whose users are kept elsewhere: what is known of a user comes here to be looked at, and goes back.

What is known of the population is small and stays here. What is known of all users is large, and may lie in shards. A
decision brings one user's facts to row 0 of the arrays of `Population`, so all arithmetic is that of one process, in
the same order and to the same bit. A pass visits users in the order in which they joined, eight side by side. Their
facts are brought in that order, many in one message.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple, Protocol, final

import numpy as np

from coterie.errors import UserError
from coterie.models.hierarchy.population import Population
from coterie.models.protocol import Seen
from coterie.models.rows.means import Means
from coterie.models.rows.ridge_rows import kernels

ROWS = 8  # that the desk has: as many users as are visited side by side
WINDOW = 1024  # users whose facts are brought for coming visits, in one message to each shard
RECENT = 1024  # users whose facts are kept here, because who was decided for is often the next to pay


class Part(NamedTuple):
    """All that is known of one user."""

    row: int  # the user's place among all, in the order of joining; who leaves is replaced by the last
    facts: bytes  # what `lift` wrote; empty for a user without payoffs


class People(Protocol):
    """Where users' parts are kept. Only one process changes them."""

    def find(self, users: Sequence[Hashable]) -> list[Part | None]:
        """Return users' parts; None for strangers, and for those who cannot be asked now: see `missing`."""

    def missing(self, user: Hashable) -> Seen | None:
        """Return who can be asked, if the user is kept where nobody answers now."""

    def is_ready(self) -> bool:
        """Return whether everybody can be asked; waits for it, or refuses, where that is the rule."""

    def between(self, first: int, last: int) -> list[tuple[Hashable, Part]]:
        """Return the users of rows [first, last), in their order."""

    def put(self, parts: Sequence[tuple[Hashable, Part]]) -> None:
        """Keep users' parts, in place of those before."""

    def drop(self, user: Hashable, row: int, last: int) -> None:
        """Forget a user; the one of the last row takes the place."""

    def reset(self, parts: Sequence[tuple[Hashable, Part]]) -> None:
        """Keep these parts, in place of everything."""

    def settle(self) -> None:
        """Wait until everybody can be asked."""


class Arrays(NamedTuple):
    """The arrays that a user's row lies in."""

    few: Population
    many: Population
    pairs: Means
    ids: bool  # whether `few` and `pairs` are used

    def lift(self, row: int) -> bytes:
        """Return all that a row holds."""
        many, few = self.many.model.users, self.few.model.users
        if not many.times[row]:
            return b""
        counts, numbers = [many.times[row]], [many.square[row : row + 1], many.gram[row], many.moment[row]]
        if self.ids:
            pairs = self.pairs.rows
            _, items, tally, total = kernels("rows.means").dump(pairs, np.array([row]))
            counts += [few.times[row], pairs.times[row], len(items), *items]
            numbers += [few.square[row : row + 1], pairs.square[row : row + 1], tally, total]
        return np.array(counts, dtype=np.int64).tobytes() + np.concatenate(numbers).tobytes()

    def lay(self, row: int, facts: bytes) -> None:
        """Write to a row what `lift` returned."""
        many, few = self.many.model.users, self.few.model.users
        for array in (*many, *(few if self.ids else ())):
            array[row] = 0
        if self.ids:
            self.pairs.clear(row)
        if not facts:
            return
        words = len(facts) // 8
        counts, numbers = np.frombuffer(facts, np.int64, words), np.frombuffer(facts, np.float64, words)
        width, d = many.gram.shape[1], many.moment.shape[1]
        at = 4 + int(counts[3]) if self.ids else 1
        many.times[row], many.square[row] = counts[0], numbers[at]
        many.gram[row] = numbers[at + 1 : at + 1 + width]
        many.moment[row] = numbers[at + 1 + width : at + 1 + width + d]
        if self.ids:
            items, at = counts[4:at].copy(), at + 1 + width + d
            few.times[row], few.square[row] = counts[1], numbers[at]
            tally, total = numbers[at + 2 :].reshape(2, len(items)).copy()
            self.pairs.fit(0, self.pairs.entries + len(items))
            kernels("rows.means").fill(self.pairs.rows, np.full(len(items), row), items, tally, total)
            self.pairs.rows.times[row], self.pairs.rows.square[row] = counts[2], numbers[at + 1]


@final
class Desk:
    """Brings users' parts to the first rows of arrays, and takes them back."""

    def __init__(self, people: People, arrays: Arrays) -> None:
        self.people = people
        self.arrays = arrays
        self._recent: dict[Hashable, Part | None] = {}  # None for strangers
        self._windows: list[dict[int, Part]] = []  # parts by row, for the coming visits of each population
        self._held: dict[Hashable, Part] | None = (
            None  # what is not sent yet, while several payoffs are learned
        )
        self._coming: Iterator[Hashable] = iter(())  # users who will be asked for next
        self.begin()

    def begin(self) -> None:
        """Forget everything that was brought here before."""
        self._recent.clear()
        self._windows.clear()
        for population in (self.arrays.few, self.arrays.many):
            window: dict[int, Part] = {}
            self._windows.append(window)
            population.visits = self._visitor(window)

    # Who comes and goes.

    def bring(self, user: Hashable) -> Part | None:
        """Lay a user's facts on row 0 and return the part; None for a stranger."""
        part = self.find(user)
        if part is not None:
            self.arrays.lay(0, part.facts)
        return part

    def find(self, user: Hashable) -> Part | None:
        """Return a user's part, None for a stranger; those who come next are brought with it."""
        if self._held is not None and user in self._held:
            return self._held[user]
        if user not in self._recent:
            self.fetch([user, *islice(self._coming, RECENT // 2)])
        return self._recent.get(user)

    def surely(self, user: Hashable) -> Part | None:
        """Return what `find` does, after waiting until the user can be asked."""
        while True:
            part = self.find(user)
            if part is not None or self.people.missing(user) is None:
                return part
            self.people.settle()

    def fetch(self, users: Sequence[Hashable]) -> None:
        """Bring the parts of users, in one message to each shard."""
        held = self._held or {}
        wanted = [user for user in dict.fromkeys(users) if user not in self._recent and user not in held]
        for user, part in zip(wanted, self.people.find(wanted) if wanted else (), strict=True):
            if part is not None or self.people.missing(user) is None:
                self._note(user, part)

    def _note(self, user: Hashable, part: Part | None) -> None:
        self._recent.pop(user, None)
        self._recent[user] = part
        while len(self._recent) > RECENT:
            del self._recent[next(iter(self._recent))]

    def put(self, user: Hashable, part: Part) -> None:
        """Keep a user's part from now on."""
        if self._held is None:
            self.people.put([(user, part)])
        else:
            self._held[user] = part
            if len(self._held) >= RECENT:
                self._send()
        self._note(user, part)
        for window in self._windows:
            if part.row in window:
                window[part.row] = part

    @contextmanager
    def held(self, users: Sequence[Hashable]) -> Iterator[None]:
        """Send what these users learn inside of the block together. They come in this order."""
        if self._held is not None:
            yield
            return
        self._held, self._coming = {}, iter(users)
        try:
            yield
        finally:
            try:
                self._send()
            finally:
                self._held, self._coming = None, iter(())

    def _send(self) -> None:
        if self._held:
            self.people.put(list(self._held.items()))
            self._held.clear()

    def next_part(self) -> Part:
        """Return the part of a user who is new, with the next row."""
        few, many, _, ids = self.arrays
        row = many.n_rows
        for population in (few, many) if ids else (many,):
            population.model.place[population.code.ROWS] += 1
        return Part(row, b"")

    def leave(self, user: Hashable, learning: Sequence[Population]) -> None:
        """Forget a user. What the populations that learn know from the user stays, in sums."""
        part = self.surely(user)
        if part is None:
            raise UserError(f"user {user!r} is not known, so cannot be dropped")
        few, many, pairs, ids = self.arrays
        last = many.n_rows - 1
        for population in learning:
            population.keep_of(part.row, pairs.rows)
        for population in (many, few) if ids else (many,):
            population.model.place[population.code.ROWS] = last
        self.people.drop(user, part.row, last)
        self._recent.clear()
        for window in self._windows:
            window.clear()

    def each(self) -> Iterator[Hashable]:
        """Yield every user in the order of rows, with the user's facts on row 0."""
        for user, part in self.parts():
            self.arrays.lay(0, part.facts)
            yield user

    def parts(self) -> Iterator[tuple[Hashable, Part]]:
        """Yield every user and part in the order of rows."""
        for first in range(0, self.arrays.many.n_rows, WINDOW):
            yield from self.people.between(first, first + WINDOW)

    # What a payoff changes.

    def learn(self, part: Part, step: Callable[[], None]) -> Part:
        """Let `step` learn a payoff of the user on row 0, and return the new part."""
        few, many = (population.model.place for population in self.arrays[:2])
        at = self.arrays.many.code.CURSOR
        before = few[at], many[at]
        few[at], many[at] = part.row < few[at], part.row < many[at]  # whether this pass has visited the user
        try:
            step()
        finally:
            few[at], many[at] = before
        return Part(part.row, self.arrays.lift(0))

    def pay_visits(self, population: Population) -> None:
        """Visit a few users after a payoff, as the kernel does where all users are at hand."""
        code, model, pairs = population.code, population.model, self.arrays.pairs.rows
        place = model.place
        code.owe(place, model.pace, model.keep)
        while (last := code.next_visit(place, model.pace)) >= 0:
            first = int(place[code.CURSOR])
            if first < last:
                population.visit(model, pairs, first, last)
                if place[code.TRIAL]:
                    on_trial = model._replace(prior=model.trial, sums=model.trial_sums)
                    population.visit(on_trial, pairs, first, last)
            code.visited(place, model.pace, last)

    def _visitor(self, window: dict[int, Part]) -> Callable[[Any, Any, int, int], None]:
        def visit(model: Any, pairs: Any, first: int, last: int) -> None:
            for start in range(first, last, ROWS):
                stop = min(start + ROWS, last)
                if not all(row in window for row in range(start, stop)):
                    self._open(window, start)
                for lane, row in enumerate(range(start, stop)):
                    self.arrays.lay(lane, window[row].facts)
                self.arrays.many.code.visit_rows(model, self.arrays.pairs.rows, 0, stop - start)

        return visit

    def _open(self, window: dict[int, Part], first: int) -> None:
        """Bring the users of the next rows."""
        window.clear()
        window.update((part.row, part) for _, part in self.people.between(first, first + WINDOW))
        for part in (self._held or {}).values():  # what was not sent yet
            if first <= part.row < first + WINDOW:
                window[part.row] = part
