"""Users of a hierarchical model whose statistics are kept in a store, such as the shards of an engine.

The population's parameters are small and stay in this process. The statistics of all users are large, and are in the
store. A decision copies one user's data to row 0 of the model's arrays, so all arithmetic is that of one process, in
the same order and to the same bit. A pass visits users in the order of their rows, eight side by side; the data of
many of them are fetched in one message to each shard.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple, Protocol, final

from coterie.errors import CoterieError, UserError
from coterie.models._kernels.hierarchy.arrays import CURSOR, TRIAL, Contexts, Model
from coterie.models._kernels.hierarchy.visits import add_due, count_visited, next_visit, visit_rows
from coterie.models.hierarchy.model import HierarchicalModel
from coterie.models.hierarchy.population import Population
from coterie.models.hierarchy.refit import keep_sums
from coterie.models.protocol import Seen

ROWS = 8  # rows of the model's arrays: the users that are visited side by side
WINDOW = 1024  # users whose data are fetched for the next visits, in one message to each shard
RECENT = 1024  # users whose data are cached: the next payoff is often from a user of a recent decision


class StoredUser(NamedTuple):
    """The data of one user in a store."""

    row: int  # the number of the user; when a user is dropped, the last user takes over the number
    data: bytes  # what `HierarchicalModel.read_row` returned; empty for a user without payoffs


class UserStore(Protocol):
    """The data of users, by name and by row. Only one process changes them."""

    def find(self, users: Sequence[Hashable]) -> list[StoredUser | None]:
        """Return users' data; None if a user is unknown, or not available now: see `missing`."""

    def missing(self, user: Hashable) -> Seen | None:
        """Return what is available, if the user's data are not."""

    def is_ready(self) -> bool:
        """Return whether all data are available; depending on the settings, waits for that or raises."""

    def between(self, first: int, last: int) -> list[tuple[Hashable, StoredUser]]:
        """Return the users of rows [first, last), in order."""

    def put(self, stored: Sequence[tuple[Hashable, StoredUser]]) -> None:
        """Store users' data, in place of their old data."""

    def drop(self, user: Hashable, row: int, last: int) -> None:
        """Forget a user; the user of the last row gets this row."""

    def reset(self, stored: Sequence[tuple[Hashable, StoredUser]]) -> None:
        """Store these users, and forget all others."""

    def settle(self) -> None:
        """Wait until all data are available."""


@final
class RemoteUsers:
    """Copies users' data from a store to the first rows of a model, and back.

    While some users are not available, payoffs wait here, and are learned in their order.
    """

    def __init__(self, store: UserStore, model: HierarchicalModel) -> None:
        self.store = store
        self.model = model
        self.waiting: deque[Callable[[], bool]] = deque()  # the payoffs that wait
        self._recent: dict[Hashable, StoredUser | None] = {}  # None for unknown users
        self._windows: list[dict[int, StoredUser]] = []  # users by row, for each population's next visits
        # Changes to send, while payoffs are learned in bulk.
        self._unsent: dict[Hashable, StoredUser] | None = None
        self._next_users: Iterator[Hashable] = iter(())  # the users of the next payoffs
        self.clear()

    def clear(self) -> None:
        """Empty the caches."""
        self._recent.clear()
        self._windows.clear()
        for population in (self.model.few, self.model.many):
            window: dict[int, StoredUser] = {}
            self._windows.append(window)
            population.visit_remote = self._visitor(window)

    def reset(self, stored: Sequence[tuple[Hashable, StoredUser]]) -> None:
        """Store these users, and forget all others and the payoffs that wait."""
        self.store.reset(stored)
        self.clear()
        self.waiting.clear()

    # Payoffs that wait.

    def in_turn(self, step: Callable[[], bool]) -> int:
        """Apply a step after those that wait, and return 1; 0 if it waits, because it returned False."""
        self.waiting.append(step)
        try:
            self._catch_up()
        except CoterieError:
            self.waiting.pop()
            raise
        return int(not self.waiting)

    def settle(self) -> None:
        """Wait until all users are available, and apply the steps that wait."""
        while self.waiting:
            self.store.settle()
            self._catch_up()

    def _catch_up(self) -> None:
        """Apply the steps that wait, until one finds some users not available."""
        while self.waiting and self.waiting[0]():
            self.waiting.popleft()

    # Users.

    def load(self, user: Hashable) -> StoredUser | None:
        """Copy a user's data to row 0 and return them; None if unknown. Applies the steps that wait."""
        self._catch_up()
        stored = self.find(user)
        if stored is not None:
            self.model.write_row(0, stored.data)
        return stored

    def find(self, user: Hashable) -> StoredUser | None:
        """Return a user's data, None if unknown; fetches those of the next users with them."""
        if self._unsent is not None and user in self._unsent:
            return self._unsent[user]
        if user not in self._recent:
            self.fetch([user, *islice(self._next_users, RECENT // 2)])
        return self._recent.get(user)

    def find_to_learn(self, user: Hashable) -> StoredUser | None:
        """Return a user's data, those of a new user if unknown; None if some users are not available now."""
        stored = self.find(user)
        if (stored is None and self.store.missing(user)) or not self.store.is_ready():
            return None
        return stored or self.new_user()

    def wait_for(self, user: Hashable) -> StoredUser | None:
        """Return the same as `find`, after waiting until the user's data are available."""
        while True:
            stored = self.find(user)
            if stored is not None or self.store.missing(user) is None:
                return stored
            self.store.settle()

    def fetch(self, users: Sequence[Hashable]) -> None:
        """Fetch users' data into the cache, in one message to each shard."""
        unsent = self._unsent or {}
        wanted = [user for user in dict.fromkeys(users) if user not in self._recent and user not in unsent]
        for user, stored in zip(wanted, self.store.find(wanted) if wanted else (), strict=True):
            if stored is not None or self.store.missing(user) is None:
                self._remember(user, stored)

    def _remember(self, user: Hashable, stored: StoredUser | None) -> None:
        self._recent.pop(user, None)
        self._recent[user] = stored
        while len(self._recent) > RECENT:
            del self._recent[next(iter(self._recent))]

    def put(self, user: Hashable, stored: StoredUser) -> None:
        """Store a user's data."""
        if self._unsent is None:
            self.store.put([(user, stored)])
        else:
            self._unsent[user] = stored
            if len(self._unsent) >= RECENT:
                self._send()
        self._remember(user, stored)
        for window in self._windows:
            if stored.row in window:
                window[stored.row] = stored

    @contextmanager
    def in_bulk(self, users: Sequence[Hashable]) -> Iterator[None]:
        """Send all changes of the block together. `users` are the users of its payoffs, in order."""
        if self._unsent is not None:
            yield
            return
        self._unsent, self._next_users = {}, iter(users)
        try:
            yield
        finally:
            try:
                self._send()
            finally:
                self._unsent, self._next_users = None, iter(())

    def _send(self) -> None:
        if self._unsent:
            self.store.put(list(self._unsent.items()))
            self._unsent.clear()

    def new_user(self) -> StoredUser:
        """Return the data of a new user, with the next row."""
        row = self.model.n_rows
        self.model.n_rows = row + 1
        return StoredUser(row, b"")

    def drop(self, user: Hashable) -> None:
        """Forget a user. What the population learned from the user stays, in sums."""
        stored = self.wait_for(user)
        if stored is None:
            raise UserError(f"user {user!r} is not known, so cannot be dropped")
        last = self.model.n_rows - 1
        for population in self.model.learning:
            keep_sums(population, stored.row, self.model.pairs.rows)
        self.model.n_rows = last
        self.store.drop(user, stored.row, last)
        self._recent.clear()
        for window in self._windows:
            window.clear()

    def each(self) -> Iterator[Hashable]:
        """Yield every user in the order of rows, with the user's data in row 0."""
        for user, stored in self.stored():
            self.model.write_row(0, stored.data)
            yield user

    def stored(self) -> Iterator[tuple[Hashable, StoredUser]]:
        """Yield every user and the user's data in the order of rows."""
        for first in range(0, self.model.n_rows, WINDOW):
            yield from self.store.between(first, first + WINDOW)

    # Payoffs.

    def learn(self, user: Hashable, stored: StoredUser, contexts: Contexts, payoff: float) -> None:
        """Learn a user's payoff for the first of `contexts`, visit a few users, and store the user's data."""
        model = self.model
        model.write_row(0, stored.data)
        model.make_room(rows=0)
        few, many = model.few.model.place, model.many.model.place
        before = few[CURSOR], many[CURSOR]
        # For row 0, the kernel's test of the cursor has to answer whether this pass has visited the user.
        few[CURSOR], many[CURSOR] = stored.row < few[CURSOR], stored.row < many[CURSOR]
        try:
            model.learn_alone(0, contexts, payoff)
        finally:
            few[CURSOR], many[CURSOR] = before
        self.put(user, StoredUser(stored.row, model.read_row(0)))
        for population in model.learning:
            self._visit_due(population)
        model.refit_if_due(len(model.pairs.items))

    def _visit_due(self, population: Population) -> None:
        """Visit the users that are due after a payoff, as the kernel does if all users are in this process."""
        model, pairs = population.model, self.model.pairs.rows
        place = model.place
        add_due(place, model.pace, model.keep)
        while (last := next_visit(place, model.pace)) >= 0:
            first = int(place[CURSOR])
            if first < last:
                population.visit(model, pairs, first, last)
                if place[TRIAL]:
                    on_trial = model._replace(prior=model.trial, sums=model.trial_sums)
                    population.visit(on_trial, pairs, first, last)
            count_visited(place, model.pace, last)

    def _visitor(self, window: dict[int, StoredUser]) -> Callable[[Model, Any, int, int], None]:
        def visit(model: Model, _pairs: Any, first: int, last: int) -> None:
            for start in range(first, last, ROWS):
                stop = min(start + ROWS, last)
                if not all(row in window for row in range(start, stop)):
                    self._fetch_window(window, start)
                for lane, row in enumerate(range(start, stop)):
                    self.model.write_row(lane, window[row].data)
                visit_rows(model, self.model.pairs.rows, 0, stop - start)

        return visit

    def _fetch_window(self, window: dict[int, StoredUser], first: int) -> None:
        """Fetch the users of the next rows."""
        window.clear()
        window.update((stored.row, stored) for _, stored in self.store.between(first, first + WINDOW))
        for stored in (self._unsent or {}).values():
            if first <= stored.row < first + WINDOW:
                window[stored.row] = stored
