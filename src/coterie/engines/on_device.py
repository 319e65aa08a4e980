"""Users' models on a device, with the protocol of one process. The host knows only the row of each user."""

from collections.abc import Hashable, Sequence
from typing import final

import numpy as np

from coterie.arrays import Floats
from coterie.engines.device.blocks import Asked, Blocks, Question
from coterie.engines.device.kernels import Block
from coterie.models import Near, View, make_models
from coterie.models.actions import Actions, ActionsLike
from coterie.models.files import Tensors, take
from coterie.models.protocol import ROUNDING, Look
from coterie.models.users.user_rows import UserRows


@final
class OnDevice:
    """Models on a device. See `coterie.models.protocol` for what each call means."""

    def __init__(self, n_features: int, blocks: Blocks) -> None:
        self.n_features = n_features
        self.blocks = blocks
        self._blank = make_models(n_features, False)  # reads candidates; has views of unknown users
        self._known = UserRows()

    # Questions.

    def read(self, contexts: ActionsLike) -> Actions:
        return self._blank.read(contexts)

    def view(self, user: Hashable, contexts: Floats) -> View:
        (question,) = self._questions([user], [contexts])
        return View(*(question.view if question.row < 0 else self.blocks.view([question])))

    def gather(self, user: Hashable, contexts: Floats, view: View, scale: float) -> Near:
        return self._look([user], [Question(-1, contexts, np.stack(view))], scale)[0].near

    def look_many(self, users: Sequence[Hashable], contexts: Sequence[Floats], scale: float) -> list[Look]:
        """Do what `view` and `gather` do for several users in one product, and wait for the device once."""
        return self._look(users, self._questions(users, contexts), scale)

    def _look(self, users: Sequence[Hashable], questions: Sequence[Question], scale: float) -> list[Look]:
        contexts = [question.contexts for question in questions]
        views, sums = self.blocks.look(questions, scale, ROUNDING, self._known.n_rows)
        answers = []
        for user, own, part in zip(users, _split(views, contexts), _split(sums, contexts), strict=True):
            view = View(*own)
            alone = int(self._known.lacks_row(user))
            near = Near(part[0].astype(np.int64) + alone, part[1], part[2] + alone * view.spread)
            answers.append(Look(view, near))
        return answers

    def _questions(self, users: Sequence[Hashable], contexts: Sequence[Floats]) -> list[Question]:
        """Return each user's candidates, with the view of an unknown user if there is no row."""
        return [
            Question(-1, rows, np.stack(self._blank.view(None, rows))) if row < 0
            else Question(row, rows, np.zeros((2, len(rows))))
            for row, rows in zip(map(self._known.row, users), contexts, strict=True)
        ]  # fmt: skip

    def neighbours(self, user: Hashable, contexts: Floats, view: View, scale: float) -> list[Hashable]:
        first = View(view.estimate[:1], view.spread[:1])
        near = self.blocks.near(_asked(contexts[:1], first, scale))
        found = [self._known.names[row] for row in np.flatnonzero(near)]
        return [*found, user] if self._known.lacks_row(user) else found

    @property
    def users(self) -> Sequence[Hashable]:
        """The known users: the updated ones first."""
        return self._known.users

    # Changes. Room is made before anything is changed.

    def update(self, user: Hashable, context: Floats, payoff: float) -> int:
        row = self._known.row(user)
        if row < 0:
            row = self._known.n_rows
            self.blocks.reserve(row + 1)
            self.blocks.learn(row, context, payoff, fresh=True)
            self._known.give_row(user)
        else:
            self.blocks.learn(row, context, payoff, fresh=False)
        return 1

    def share(
        self, user: Hashable, context: Floats, payoff: float, view: View, scale: float, limit: float
    ) -> int:
        alone = self._known.lacks_row(user)
        self.blocks.reserve(self._known.n_rows + alone)
        asked = _asked(context[None, :], view, scale)
        learners = self.blocks.share(asked, payoff, limit, self._known.row(user))
        return learners + (self.update(user, context, payoff) if alone else 0)

    def add(self, user: Hashable) -> None:
        self._known.add(user)

    def drop(self, user: Hashable) -> None:
        """Forget a user; the last row moves into the gap."""
        row, last = self._known.drop(user), self._known.n_rows
        if row >= 0:
            if row != last:
                self.blocks.move(last, row)
            self.blocks.clear(last)

    # All users at once.

    def part(self, users: Sequence[Hashable]) -> Tensors:
        """Return some users as arrays, with a row for each updated user."""
        rows, names = self._known.pack(users)
        return {**names, **self.blocks.read(rows)._asdict()}

    def put(self, part: Tensors) -> None:
        names, idle = self._known.unpack(part)
        pairs, features = self.n_features * (self.n_features + 1) // 2, self.n_features
        wide, narrow = (len(names), pairs), (len(names), features)
        shapes = Block(wide, narrow, wide, narrow)
        arrays = Block(*(take(part, name, "f", shape) for name, shape in shapes._asdict().items()))
        self.blocks.reserve(self._known.n_rows + len(names))
        self.blocks.write(self._known.n_rows, arrays)
        self._known.put(names, idle)

    def tensors(self) -> Tensors:
        return self.part(self.users)

    def restore(self, tensors: Tensors) -> None:
        """Replace all users; for a moment there must be room for both."""
        fresh = OnDevice(self.n_features, self.blocks.like())
        fresh.put(tensors)
        self.blocks, self._known = fresh.blocks, fresh._known


def _asked(contexts: Floats, view: View, scale: float) -> Asked:
    return Asked(contexts, view.estimate, scale * view.spread + ROUNDING, scale)


def _split(columns: Floats, contexts: Sequence[Floats]) -> list[Floats]:
    """Return the columns of each list of candidates."""
    return np.split(columns, np.cumsum([len(rows) for rows in contexts])[:-1], axis=1)
