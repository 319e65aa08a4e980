"""User models whose old payoffs count less: M = I + Σ λ^age·x xᵀ and b = Σ λ^age·y x.

The age of a payoff counts the later payoffs of the same user, whether the user learned them alone or with neighbours.
Payoffs of one age on one item are rare, so the classes of equal users of `one_hot` would have one member each. Here
every user who has learned has a row of a bank, and every question looks at all rows. Over vectors an update is O(d³),
because the prior does not fade; M stays well-conditioned, because its largest eigenvalue is at most 1 + 1/(1 − λ).
"""

from collections.abc import Hashable, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from coterie.errors import FileError, UserError
from coterie.models.checks import check_user
from coterie.models.files import Tensors, pack_ids, unpack_ids
from coterie.models.protocol import ROUNDING, Eligible, Floats, Near, View
from coterie.models.rows.loops import Chunk, Items, Log
from coterie.models.rows.ridge_rows import Compiled, RidgeRows


@final
class Fading(Compiled):
    """One ridge regression a user, over what the bank is for. `keep` is λ: what a payoff counts after one more."""

    def __init__(self, bank: RidgeRows, eligible: Eligible, keep: float) -> None:
        super().__init__("users.fading")
        self.bank = bank
        self.eligible = eligible
        self.keep = keep
        self._row: dict[Hashable, int] = {}  # users that were updated, and where they lie
        self._names: list[Hashable] = []  # the user of each row
        self._idle: dict[Hashable, None] = {}  # users that were not: known, with M = I

    def read(self, contexts: Any) -> Any:
        """Check candidates and return them as the bank does."""
        return self.bank.read(contexts)

    def view(self, user: Hashable, contexts: Any) -> View:
        """Return the user's own estimates and spreads."""
        return self.bank.view(self._row.get(user, -1), self.bank.numbers(contexts))

    def gather(self, user: Hashable, contexts: Any, view: View, scale: float) -> Near:
        """Sum over each candidate's neighbours."""
        near = self._kernels.gather(*self._question(contexts), *view, scale)
        idle, spread = self._idle_near(user, contexts, view, scale)
        return Near(near[0].astype(np.int64) + idle, near[1], near[2] + idle * spread)

    def draw(
        self, user: Hashable, contexts: Any, view: View, scale: float, rng: np.random.Generator
    ) -> tuple[Near, Floats]:
        """Return what `gather` does, and the sum of what the neighbours draw: each w ~ N(wⱼ, scale²·Mⱼ⁻¹) once.

        The idle neighbours are the same for every candidate that has any, so one draw stands for their sum.
        """
        near = self._kernels.draw_near(*self._question(contexts), *view, scale, rng)
        idle, spread = self._idle_near(user, contexts, view, scale)
        drawn: Floats = near[3]
        if count := len(self._waiting(user)):
            together = self.bank.draw(-1, self.bank.numbers(contexts), scale * np.sqrt(count), rng)
            drawn = drawn + (idle > 0) * together
        return Near(near[0].astype(np.int64) + idle, near[1], near[2] + idle * spread), drawn

    def neighbours(self, user: Hashable, contexts: Any, view: View, scale: float) -> list[Hashable]:
        """Return the neighbours for the first candidate."""
        first = View(view.estimate[:1], view.spread[:1])
        near, _ = self._kernels.near_rows(*self._question(contexts[:1]), *first, scale)
        idle, _ = self._idle_near(user, contexts[:1], first, scale)
        return [self._names[row] for row in np.flatnonzero(near)] + (self._waiting(user) if idle[0] else [])

    def update(self, user: Hashable, context: Any, payoff: float) -> int:
        """Let one user learn."""
        item = self.bank.learnable([context])
        self._learn(user, item, payoff)
        return 1

    def share(
        self, user: Hashable, context: Any, payoff: float, view: View, scale: float, limit: float
    ) -> int:
        """Let the confident neighbours learn."""
        idle, spread = self._idle_near(user, [context], view, scale)
        item = self.bank.learnable([context])
        self.bank.fit(0, self.bank.entries + len(self._names))
        learners: int = self._kernels.share(
            self.bank.rows, len(self._names), self._row.get(user, -1), item, np.zeros(1, np.int64), payoff,
            *view, scale, limit, self.keep,
        )  # fmt: skip
        if idle[0] and scale * spread[0] < limit:
            waiting = self._waiting(user)
            for name in waiting:
                self._learn(name, item, payoff)
            learners += len(waiting)
        return learners

    def run(
        self,
        users: Sequence[Hashable],
        candidates: NDArray[np.int64],
        table: Any,
        payoffs: Floats,
        served: NDArray[np.int64],
        alpha: float,
        gamma: float,
        learned: int,
        rng: np.random.Generator | None,
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]:
        """Play checked rounds of CAB in one compiled loop: choice, kept, members, updated (all (rounds,)).

        With `rng`, candidates are scored by draws instead of bounds.
        """
        if self.bank.one_hot and len(set(table)) < len(table):  # an item has one number
            once = {item: k for k, item in enumerate(dict.fromkeys(table))}
            candidates = np.array([once[item] for item in table], dtype=np.int64)[candidates]
            table = list(once)
        visitors = users.tolist() if isinstance(users, np.ndarray) else users
        chunk = Chunk(Log(visitors, candidates, payoffs, served), lambda user: self._row.get(user, -1))
        people = list(self._idle | dict.fromkeys(chunk.users))
        place = {user: k for k, user in enumerate(people)}
        number = np.array([place[user] for user in chunk.users], dtype=np.int64)
        rounds = chunk.rounds._replace(who=number[chunk.rounds.who])
        row_of = np.array([self._row.get(user, -1) for user in people], dtype=np.int64)
        known = np.array([user in self for user in people], dtype=np.bool_)
        items = Items(self.bank, table)
        before = len(self._names)
        so_far = np.array([0, learned, before, len(self._idle)])
        stream = rng or np.random.default_rng(0)
        while so_far[0] < len(rounds.who):
            room = int(so_far[2] + so_far[3]) + 1
            self.bank.fit(room, self.bank.entries + room)
            self._kernels.play(
                self.bank.rows, items.numbers, items.named, rounds, row_of, known, so_far,
                self.eligible == "all", self.keep, alpha, gamma, rng is not None, stream,
            )  # fmt: skip
        items.settle()
        self._names += [None] * (int(so_far[2]) - before)
        for user, row in zip(people, row_of.tolist(), strict=True):
            if row >= before:
                self._names[row], self._row[user] = user, row
                self._idle.pop(user, None)
        return rounds.choice, rounds.kept, rounds.members, rounds.updated

    def add(self, user: Hashable) -> None:
        """Register a user."""
        check_user(user)
        if user not in self._row:
            self._idle.setdefault(user)

    def drop(self, user: Hashable) -> None:
        """Forget a user; the last row moves into the gap."""
        check_user(user)
        if user in self._idle:
            del self._idle[user]
            return
        if user not in self._row:
            raise UserError(f"user {user!r} is not known, so cannot be dropped")
        row, name = self._row.pop(user), self._names.pop()
        if row != len(self._names):
            self._names[row], self._row[name] = name, row
        self.bank.replace(row)

    @property
    def users(self) -> Sequence[Hashable]:
        """The known users: the updated ones first."""
        return [*self._names, *self._idle]

    def __contains__(self, user: Hashable) -> bool:
        """Return whether a user is known."""
        return user in self._row or user in self._idle

    def __len__(self) -> int:
        """Return how many users are known."""
        return len(self._names) + len(self._idle)

    def tensors(self) -> Tensors:
        """Return everybody."""
        return {
            "updated": pack_ids(self._names),
            "idle": pack_ids(self._idle),
            **self.bank.tensors("model", np.arange(len(self._names))),
        }

    def restore(self, tensors: Tensors) -> None:
        """Take over saved arrays."""
        names, idle = unpack_ids(tensors, "updated"), unpack_ids(tensors, "idle")
        if not set(names).isdisjoint(idle):
            raise FileError("a user in the model file is both updated and idle")
        self.bank.rows = self.bank.restore("model", tensors, len(names))
        self._names, self._idle = names, dict.fromkeys(idle)
        self._row = {name: row for row, name in enumerate(names)}

    def _question(self, contexts: Any) -> tuple[Any, int, NDArray[Any], NDArray[np.int64]]:
        """Return rows, how many there are, and the candidates as kernels take them."""
        return self.bank.rows, len(self._names), self.bank.numbers(contexts), np.arange(len(contexts))

    def _learn(self, user: Hashable, item: NDArray[Any], payoff: float) -> None:
        """Let a user learn who gets a row if there is none yet."""
        if user not in self._row:
            self._idle.pop(user, None)
            self._row[user] = self.bank.take()
            self._names.append(user)
        self.bank.fade(self._row[user], self.keep)
        self.bank.update(self._row[user], item, payoff)

    def _waiting(self, user: Hashable) -> list[Hashable]:
        """Return the users without a row who may be neighbours of `user`: at least `user`, if one of them."""
        everybody = dict(self._idle) if self.eligible == "all" else {}
        return list(everybody if user in self._row else everybody | {user: None})

    def _idle_near(
        self, user: Hashable, contexts: Any, view: View, scale: float
    ) -> tuple[NDArray[np.int64], Floats]:
        """Return how many idle users are neighbours for each candidate, and the spread they all have."""
        _, spread = self.bank.view(-1, self.bank.numbers(contexts))
        near = np.abs(view.estimate) <= scale * (spread + view.spread) + ROUNDING
        return len(self._waiting(user)) * near.astype(np.int64), spread
