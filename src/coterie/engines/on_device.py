"""The users' models on a device, behind the same protocol as in one process.

This side knows which user has which row; the numbers are on the device. A user who was never updated has M = I and
w = 0, so needs no row.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from coterie.engines.device.blocks import Asked, Blocks, Question
from coterie.engines.device.kernels import Block
from coterie.errors import FileError, UserError
from coterie.models import Models, Near, View, make_models
from coterie.models.checks import check_user
from coterie.models.files import Tensors, pack_ids, take, unpack_ids
from coterie.models.protocol import NOBODY, ROUNDING, Eligible, Floats, Look

PARTS = 256  # of the register


@final
class Register:
    """Which user has which row, in many small dictionaries: one with millions of users would pause to grow."""

    def __init__(self) -> None:
        self._parts: list[dict[Hashable, int]] = [{} for _ in range(PARTS)]

    def _part(self, user: Hashable) -> dict[Hashable, int]:
        mixed = hash(user)
        return self._parts[(mixed ^ mixed >> 8 ^ mixed >> 20) % PARTS]

    def get(self, user: Hashable) -> int | None:
        """Return the user's row, or None."""
        return self._part(user).get(user)

    def __setitem__(self, user: Hashable, row: int) -> None:
        self._part(user)[user] = row

    def __contains__(self, user: Hashable) -> bool:
        return user in self._part(user)

    def pop(self, user: Hashable) -> int:
        """Forget a user and return the row."""
        return self._part(user).pop(user)


@final
class OnDevice:
    """Models on a device. See `coterie.models.Models` for what each call means."""

    def __init__(self, n_features: int, eligible: Eligible, blocks: Blocks) -> None:
        self.n_features = n_features
        self.eligible = eligible
        self.blocks = blocks
        self._blank = make_models(
            n_features, False, eligible
        )  # reads candidates, and has a stranger's opinions
        self._row = Register()
        self._names: list[Hashable] = []  # the user of each row
        self._idle: dict[Hashable, None] = {}  # users that were not updated: known, with M = I

    # Questions.

    def read(self, contexts: Any) -> Any:
        """Check candidates."""
        return self._blank.read(contexts)

    def view(self, user: Hashable, contexts: Floats) -> View:
        """Return the user's own estimates and spreads."""
        (question,) = self._questions([user], [contexts])
        return View(*(question.view if question.row < 0 else self.blocks.view([question])))

    def gather(self, user: Hashable, contexts: Floats, view: View, scale: float) -> Near:
        """Sum over each candidate's neighbours."""
        return self._look([user], [Question(-1, contexts, np.stack(view))], scale)[0].near

    def look_many(self, users: Sequence[Hashable], contexts: Sequence[Floats], scale: float) -> list[Look]:
        """Do what `view` and `gather` do for several users in one product, and wait for the device once."""
        return self._look(users, self._questions(users, contexts), scale)

    def in_turn(self, step: Callable[[Models], int]) -> int:
        """Apply a step now: a device does not lose users."""
        return step(self)

    def _look(self, users: Sequence[Hashable], questions: Sequence[Question], scale: float) -> list[Look]:
        contexts = [question.contexts for question in questions]
        views, sums = self.blocks.look(questions, scale, ROUNDING, len(self._names))
        answers = []
        for user, rows, own, part in zip(
            users, contexts, _split(views, contexts), _split(sums, contexts), strict=True
        ):
            view = View(*own)
            idle, spread = self._idle_near(user, rows, view, scale)
            near = Near(part[0].astype(np.int64) + idle, part[1], part[2] + idle * spread)
            answers.append(Look(view, near))
        return answers

    def _questions(self, users: Sequence[Hashable], contexts: Sequence[Floats]) -> list[Question]:
        """Return each user's candidates, with the opinions of a stranger where there is no row."""
        return [
            Question(-1, rows, np.stack(self._blank.view(NOBODY, rows))) if row is None
            else Question(row, rows, np.zeros((2, len(rows))))
            for row, rows in zip(map(self._row.get, users), contexts, strict=True)
        ]  # fmt: skip

    def neighbours(self, user: Hashable, contexts: Floats, view: View, scale: float) -> list[Hashable]:
        """Return the neighbours for the first candidate."""
        first = View(view.estimate[:1], view.spread[:1])
        near = self.blocks.near(_asked(contexts[:1], first, scale))
        idle, _ = self._idle_near(user, contexts[:1], first, scale)
        found = [self._names[row] for row in np.flatnonzero(near)]
        return found + (self._idle_eligible(user) if idle[0] else [])

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

    # Changes. Room is made before anything is changed.

    def update(self, user: Hashable, context: Floats, payoff: float) -> int:
        """Let one user learn."""
        row = self._row.get(user)
        if row is None:
            self.blocks.reserve(len(self._names) + 1)
            self.blocks.learn(len(self._names), context, payoff, fresh=True)
            self._enter([user])
        else:
            self.blocks.learn(row, context, payoff, fresh=False)
        return 1

    def share(
        self, user: Hashable, context: Floats, payoff: float, view: View, scale: float, limit: float
    ) -> int:
        """Let the confident neighbours learn."""
        contexts = context[None, :]
        idle, spread = self._idle_near(user, contexts, view, scale)
        fresh = self._idle_eligible(user) if idle[0] and scale * spread[0] < limit else []
        rows = len(self._names)
        self.blocks.reserve(rows + len(fresh))
        own = self._row.get(user)
        learners = self.blocks.share(_asked(contexts, view, scale), payoff, limit, -1 if own is None else own)
        if fresh:
            self.blocks.learn_alike(rows, rows + len(fresh), context, payoff)
            self._enter(fresh)
        return learners + len(fresh)

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
        row, last = self._row.get(user), len(self._names) - 1
        if row is None:
            raise UserError(f"user {user!r} is not known, so cannot be dropped")
        if row != last:
            self.blocks.move(last, row)
        self.blocks.clear(last)
        self._row.pop(user)
        name = self._names.pop()
        if row != last:
            self._names[row] = name
            self._row[name] = row

    def _enter(self, users: Sequence[Hashable]) -> None:
        """Note who has the next rows."""
        for user in users:
            self._idle.pop(user, None)
            self._row[user] = len(self._names)
            self._names.append(user)

    # Everybody at once.

    def part(self, users: Sequence[Hashable]) -> Tensors:
        """Return some users as arrays, a row for each who was updated."""
        rows = {user: row for user in users if (row := self._row.get(user)) is not None}
        arrays = self.blocks.read(np.array(list(rows.values()), dtype=np.int64))
        idle = [user for user in users if user in self._idle]
        return {"updated": pack_ids(rows), "idle": pack_ids(idle), **arrays._asdict()}

    def put(self, part: Tensors) -> None:
        """Take users over, their rows as they are."""
        names, idle, arrays = self._checked(part)
        for user in (*names, *idle):
            if user in self:
                raise FileError(f"user {user!r} is known already, so cannot be taken over")
        self.blocks.reserve(len(self._names) + len(names))
        self.blocks.write(len(self._names), arrays)
        self._enter(names)
        self._idle.update(dict.fromkeys(idle))

    def tensors(self) -> Tensors:
        """Return everybody."""
        return self.part(self.users)

    def restore(self, tensors: Tensors) -> None:
        """Take over saved arrays, in place of everything; room for both is needed for a moment."""
        fresh = OnDevice(self.n_features, self.eligible, self.blocks.like())
        fresh.put(tensors)
        self.blocks, self._names, self._idle, self._row = fresh.blocks, fresh._names, fresh._idle, fresh._row

    def _checked(self, part: Tensors) -> tuple[list[Hashable], list[Hashable], Block]:
        names, idle = unpack_ids(part, "updated"), unpack_ids(part, "idle")
        pairs, features = self.n_features * (self.n_features + 1) // 2, self.n_features
        wide, narrow = (len(names), pairs), (len(names), features)
        shapes = Block(wide, narrow, wide, narrow)
        arrays = Block(*(take(part, name, "f", shape) for name, shape in shapes._asdict().items()))
        if not set(names).isdisjoint(idle):
            raise FileError("a user in the model file is both updated and idle")
        return names, idle, arrays

    # Users without a row.

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
        spread = self._blank.view(NOBODY, contexts).spread
        near = np.abs(view.estimate) <= scale * (spread + view.spread) + ROUNDING
        count = (len(self._idle) if self.eligible == "all" else 0) + self._is_extra(user)
        return count * near.astype(np.int64), spread


def _asked(contexts: Floats, view: View, scale: float) -> Asked:
    return Asked(contexts, view.estimate, scale * view.spread + ROUNDING, scale)


def _split(columns: Floats, contexts: Sequence[Floats]) -> list[Floats]:
    """Return the columns of each list of candidates."""
    return np.split(columns, np.cumsum([len(rows) for rows in contexts])[:-1], axis=1)
