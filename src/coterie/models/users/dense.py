"""User models over feature vectors, as the packed upper triangles of their inverse matrices.

For all users and candidates at once, xᵀM⁻¹x is one matrix product: M⁻¹ is kept as its upper triangle in a
row, and x becomes the row of products xₐ·x_b (a ≤ b), the off-diagonal ones doubled. A user who was never
updated has M = I and w = 0, so needs no row: such idle users are only counted.

Roundings would add up over many updates, so what each one loses is kept beside and added back (see the kernels).

With `sample`, rows lie in random order: whoever gets a row changes places with a row drawn by a hash of how many came
before. So the first `sample` rows are a uniform sample of the updated users, and they lie side by side. A user who is
dropped gives the place to the last row, which leaves the order random.
"""

import hashlib
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from coterie.errors import FileError, UserError
from coterie.models._kernels.users import dense as kernels
from coterie.models._kernels.users.simd import PANEL
from coterie.models.checks import check_user, read_vectors
from coterie.models.files import Tensors, pack_ids, take, unpack_ids
from coterie.models.protocol import NOBODY, ROUNDING, Eligible, Floats, Look, Near, View
from coterie.models.threads import in_chunks


class Panels(NamedTuple):
    """The arrays, eight users a panel (see the kernels). One method writes them all."""

    inverses: Floats
    weights: Floats
    lost: NDArray[np.float32]
    missed: NDArray[np.float32]

    @classmethod
    def empty(cls, panels: int, n_features: int) -> "Panels":
        pairs = n_features * (n_features + 1) // 2
        wide, narrow = (panels, pairs, PANEL), (panels, n_features, PANEL)
        return cls(np.zeros(wide), np.zeros(narrow), np.zeros(wide, np.float32), np.zeros(narrow, np.float32))


@final
class Dense:
    """One ridge regression a user over `n_features` features.

    With `sample`, only so many updated users may be neighbours of others, drawn by chance.
    """

    def __init__(self, n_features: int, eligible: Eligible, sample: int | None = None) -> None:
        self.n_features = n_features
        self.eligible = eligible
        self.sample = sample
        self._joined = 0  # users who ever got a row, where there is a sample
        self._row: dict[Hashable, int] = {}  # users that were updated, and where they lie
        self._idle: dict[Hashable, None] = {}  # users that were not: known, with M = I
        self._names: list[Hashable] = []  # the user of each row
        self._panels = Panels.empty(0, n_features)

    def read(self, contexts: Any) -> Floats:
        """Check candidates and return them as (candidates, n_features)."""
        return read_vectors(contexts, self.n_features)

    def view(self, user: Hashable, contexts: Floats) -> View:
        """Return the user's own estimates and spreads."""
        row = self._row.get(user)
        estimate, spread = np.zeros(len(contexts)), np.empty(len(contexts))
        if row is None:
            kernels.norms(contexts, spread)
        else:
            kernels.view(self._panels.inverses, self._panels.weights, row, contexts, estimate, spread)
        return View(estimate, spread)

    def gather(self, user: Hashable, contexts: Floats, view: View, scale: float) -> Near:
        """Sum over each candidate's neighbours."""
        members, estimate, spread = self._sums(contexts, view, scale)
        if self._is_beyond(user):
            members, estimate, spread = members + 1, estimate + view.estimate, spread + view.spread
        if self._idle_count(user):
            idle, bare = self._idle_near(user, contexts, view, scale)
            members, spread = members + idle, spread + idle * bare
        return Near(members.astype(np.int64), estimate, spread)

    def look_many(self, users: Sequence[Hashable], contexts: Sequence[Floats], scale: float) -> list[Look]:
        """Do what `view` and `gather` do for several users, with one product for all."""
        views = [self.view(*one) for one in zip(users, contexts, strict=True)]
        near = self.gather_many(users, contexts, views, scale)
        return [Look(*one) for one in zip(views, near, strict=True)]

    def draw(
        self, user: Hashable, contexts: Floats, view: View, scale: float, rng: np.random.Generator
    ) -> tuple[Near, Floats]:
        """Return what `gather` does, and the sum of what the neighbours draw: each w ~ N(wⱼ, scale²·Mⱼ⁻¹) once.

        The idle neighbours are the same for every candidate that has any, so one draw stands for their sum.
        """
        rows = len(self._names)
        normals = rng.standard_normal((rows, self.n_features))
        near = kernels.draw_all(*self._panels[:2], rows, normals, contexts, *view, scale)
        idle, spread = self._idle_near(user, contexts, view, scale)
        drawn: Floats = near[3]
        if self._idle_count(user):
            together = scale * np.sqrt(self._idle_count(user)) * rng.standard_normal(self.n_features)
            drawn = drawn + (idle > 0) * (contexts * together).sum(axis=1)
        return Near(near[0].astype(np.int64) + idle, near[1], near[2] + idle * spread), drawn

    def gather_many(
        self, users: Sequence[Hashable], contexts: Sequence[Floats], views: Sequence[View], scale: float
    ) -> list[Near]:
        """Do what `gather` does, for several users in one product."""
        everyone = View(*(np.concatenate(part) for part in zip(*views, strict=True)))
        near = self._sums(np.concatenate(contexts), everyone, scale)
        answers, first = [], 0
        for user, rows, view in zip(users, contexts, views, strict=True):
            part = near[:, first : first + len(rows)]
            if self._is_beyond(user):
                part = part + np.stack([np.ones(len(rows)), *view])
            idle, spread = self._idle_near(user, rows, view, scale)
            answers.append(Near(part[0].astype(np.int64) + idle, part[1], part[2] + idle * spread))
            first += len(rows)
        return answers

    def neighbours(self, user: Hashable, contexts: Floats, view: View, scale: float) -> list[Hashable]:
        """Return the neighbours for the first candidate."""
        found = [self._names[row] for row in np.flatnonzero(self._near_rows(contexts[0], view, scale))]
        found += [user] * self._is_beyond(user)
        idle, _ = self._idle_near(user, contexts[:1], View(view.estimate[:1], view.spread[:1]), scale)
        return found + (self._idle_eligible(user) if idle[0] else [])

    def update(self, user: Hashable, context: Floats, payoff: float) -> int:
        """Let one user learn."""
        row = self._activate(user)
        kernels.learn_row(*self._panels, row, context, payoff)
        return 1

    def share(
        self, user: Hashable, context: Floats, payoff: float, view: View, scale: float, limit: float
    ) -> int:
        """Let the confident neighbours learn."""
        near = (view.estimate[0], view.spread[0], scale, limit)
        learners: int = kernels.share(
            *self._panels, self._reach, self._row.get(user, -1), context, payoff, *near
        )
        if self._is_beyond(user):
            learners += self.update(user, context, payoff)
        idle, spread = self._idle_near(user, context[None, :], view, scale)
        if idle[0] and scale * spread[0] < limit:
            learners += sum(self.update(name, context, payoff) for name in self._idle_eligible(user))
        return learners

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
        row, last = self._row.pop(user), len(self._names) - 1
        name = self._names.pop()
        if row != last:
            self._names[row], self._row[name] = name, row
        for array in self._panels:
            array[row // PANEL, ..., row % PANEL] = array[last // PANEL, ..., last % PANEL]
            array[last // PANEL, ..., last % PANEL] = 0

    @property
    def users(self) -> Sequence[Hashable]:
        """The known users: the updated ones first."""
        return [*self._names, *self._idle]

    def run(
        self,
        users: Sequence[Hashable],
        candidates: NDArray[np.int64],
        table: Floats,
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
        names = list(dict.fromkeys([*self._idle, *users]))
        position = {name: i for i, name in enumerate(names)}
        row_of = np.array([self._row.get(name, -1) for name in names], dtype=np.int64)
        known = np.array([name in self._row or name in self._idle for name in names], dtype=np.bool_)
        self._reserve(len(self._names) + int((row_of < 0).sum()))
        rounds = len(users)
        choice, members, updated = (np.zeros(rounds, dtype=np.int64) for _ in range(3))
        kept = np.zeros(rounds, dtype=np.bool_)
        before = len(self._names)
        rows = kernels.run_cab(
            *self._panels,
            before,
            np.array([position[user] for user in users], dtype=np.int64),
            row_of,
            known,
            self.eligible == "all",
            table,
            candidates,
            payoffs,
            served,
            alpha,
            gamma,
            learned,
            rng is not None,
            rng if rng is not None else np.random.default_rng(0),
            choice,
            kept,
            members,
            updated,
        )
        self._names += [None] * (rows - before)
        for name, row in zip(names, row_of.tolist(), strict=True):
            if row >= before:
                self._names[row], self._row[name] = name, row
                self._idle.pop(name, None)
        return choice, kept, members, updated

    def __contains__(self, user: Hashable) -> bool:
        """Return whether a user is known."""
        return user in self._row or user in self._idle

    def __len__(self) -> int:
        """Return how many users are known."""
        return len(self._names) + len(self._idle)

    def part(self, users: Sequence[Hashable]) -> Tensors:
        """Return some users as arrays, a row for each who was updated."""
        names = [user for user in users if user in self._row]
        rows = np.array([self._row[name] for name in names], dtype=np.int64)
        arrays = {
            name: array[rows // PANEL, ..., rows % PANEL] for name, array in self._panels._asdict().items()
        }
        idle = [user for user in users if user in self._idle]
        return {"updated": pack_ids(names), "idle": pack_ids(idle), **arrays}

    def put(self, part: Tensors) -> None:
        """Take users over, their rows as they are."""
        names, idle = unpack_ids(part, "updated"), unpack_ids(part, "idle")
        arrays = {
            name: take(part, name, array.dtype.kind, (len(names), *array.shape[1:-1]))
            for name, array in self._panels._asdict().items()
        }
        for user in (*names, *idle):
            if user in self:
                raise FileError(f"user {user!r} is known already, so cannot be taken over")
        if not set(names).isdisjoint(idle):
            raise FileError("a user in the model file is both updated and idle")
        first = len(self._names)
        self._reserve(first + len(names))
        rows = np.arange(first, first + len(names))
        for name, array in self._panels._asdict().items():
            array[rows // PANEL, ..., rows % PANEL] = arrays[name]
        self._names += names
        self._row.update(zip(names, rows.tolist(), strict=True))
        self._idle.update(dict.fromkeys(idle))

    def tensors(self) -> Tensors:
        """Return everybody."""
        found = self.part(self.users)
        return found if self.sample is None else found | {"joined": np.array([self._joined])}

    def restore(self, tensors: Tensors) -> None:
        """Take over saved arrays."""
        fresh = Dense(self.n_features, self.eligible, self.sample)
        fresh.put(tensors)
        joined = len(fresh._names) if self.sample is None else int(take(tensors, "joined", "i", (1,))[0])
        if joined < len(fresh._names):
            raise FileError(f"the model file counts {joined} users who joined, but has {len(fresh._names)}")
        self._panels, self._names, self._idle, self._row, self._joined = (
            fresh._panels, fresh._names, fresh._idle, fresh._row, joined,
        )  # fmt: skip

    def _sums(self, contexts: Floats, view: View, scale: float) -> Floats:
        """Sum members, estimates and spreads over the neighbours within reach: (3, candidates)."""
        rows = self._reach
        inverses, weights = self._panels.inverses, self._panels.weights
        panels = -(-rows // PANEL)
        if panels <= kernels.CHUNK:
            sums: Floats = kernels.gather_all(inverses, weights, rows, contexts, *view, scale)
            return sums

        def chunk(first: int, last: int) -> Floats:
            part = np.zeros((3, len(contexts)))
            kernels.gather(inverses, weights, rows, contexts, *view, scale, first, last, part)
            return part

        return sum(in_chunks(chunk, panels, kernels.CHUNK), start=np.zeros((3, len(contexts))))

    def _near_rows(self, context: Floats, view: View, scale: float) -> NDArray[np.bool_]:
        """Return which rows within reach are neighbours on one context."""
        inverses, weights = self._panels.inverses, self._panels.weights
        rows: NDArray[np.bool_] = kernels.near_rows(
            inverses, weights, self._reach, context, view.estimate[0], view.spread[0], scale
        )
        return rows

    @property
    def _reach(self) -> int:
        """How many rows, from the first on, may be neighbours of others: all, or the sample."""
        return len(self._names) if self.sample is None else min(self.sample, len(self._names))

    def _is_beyond(self, user: Hashable) -> bool:
        """Return whether a user has a row that is not in the sample, so counts for the own neighbourhood only."""
        return self.sample is not None and self._row.get(user, -1) >= self.sample

    def _idle_eligible(self, user: Hashable) -> list[Hashable]:
        """Return the users without a row who may be neighbours of `user`: at least `user`, if one of them."""
        everybody = [*self._idle] if self.eligible == "all" else []
        return [*everybody, user] if self._is_extra(user) else everybody

    def _is_extra(self, user: Hashable) -> bool:
        """Return whether a user counts, for the own neighbourhood only, beside the eligible ones."""
        return (
            user is not NOBODY
            and user not in self._row
            and (self.eligible == "updated" or user not in self._idle)
        )

    def _idle_near(
        self, user: Hashable, contexts: Floats, view: View, scale: float
    ) -> tuple[NDArray[np.int64], Floats]:
        """Return how many idle users are neighbours for each candidate, and the spread they all have."""
        spread = np.empty(len(contexts))
        kernels.norms(contexts, spread)
        near = np.abs(view.estimate) <= scale * (spread + view.spread) + ROUNDING
        return self._idle_count(user) * near.astype(np.int64), spread

    def _idle_count(self, user: Hashable) -> int:
        return (len(self._idle) if self.eligible == "all" else 0) + self._is_extra(user)

    def _activate(self, user: Hashable) -> int:
        """Return the user's row, made if there is none yet."""
        if user in self._row:
            return self._row[user]
        row = len(self._names)
        self._reserve(row + 1)
        self._idle.pop(user, None)
        self._row[user] = row
        self._names.append(user)
        kernels.open_row(*self._panels, row)
        return row if self.sample is None else self._shuffle(row)

    def _shuffle(self, last: int) -> int:
        """Let the last row change places with one drawn among all, itself included; return where it is then."""
        self._joined += 1
        row = place_of(self._joined, last + 1)
        if row != last:
            for array in self._panels:
                here, there = array[row // PANEL, ..., row % PANEL], array[last // PANEL, ..., last % PANEL]
                here[:], there[:] = there.copy(), here.copy()
            names = self._names
            names[row], names[last] = names[last], names[row]
            self._row[names[row]], self._row[names[last]] = row, last
        return row

    def _reserve(self, rows: int) -> None:
        """Make room for so many rows, at least doubling."""
        have, need = len(self._panels.weights), -(-rows // PANEL)
        if need > have:
            wider = Panels.empty(max(need, 2 * have), self.n_features)
            for name, old in self._panels._asdict().items():
                getattr(wider, name)[:have] = old
            self._panels = wider


def place_of(joined: int, rows: int) -> int:
    """Return the row, of so many, that the user takes who is the `joined`-th to come: the same on every machine."""
    return int.from_bytes(hashlib.blake2b(str(joined).encode(), digest_size=8).digest()) % rows
