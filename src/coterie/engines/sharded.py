"""Users' models in several shards, with the same protocol as in one process.

No user is kept on this side: it knows which shard has which slot, and the supervisor rebuilds lost shards.

While a shard is lost and `when_down` is "partial", decisions use the other shards, and payoffs wait here. They are
learned in their order as soon as all shards answer again.
"""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, final

import numpy as np

from coterie.engines.in_shards import InShards
from coterie.engines.shard import Asked, Kind, Shard
from coterie.engines.supervisor import Backend, WhenDown
from coterie.errors import UserError
from coterie.models import Models, Near, Shardable, View, make_models
from coterie.models.checks import check_user
from coterie.models.files import Tensors
from coterie.models.protocol import Look, Seen

Step = Callable[[Models], int]


class IncompleteError(Exception):
    """A step needs the models of all users, but a shard is lost."""


@final
class Sharded(InShards):
    """Models in shards. See `coterie.models.protocol` for what each call means."""

    def __init__(
        self, backend: Backend, kind: Kind, shards: int, when_down: WhenDown, snapshot_every: int
    ) -> None:
        super().__init__(backend, shards, when_down, snapshot_every, Shard, kind)
        self._kind = kind
        self._blank = make_models(*kind)  # reads candidates, and has the estimates of unknown users
        self.waiting: deque[Step] = deque()  # the payoffs that wait for a lost shard
        self._in_step = False  # whether a payoff is being learned, which needs all shards
        self._counts: dict[int, int] = {}  # users of each shard, by its last answer

    # Payoffs that wait.

    def in_turn(self, step: Step) -> int:
        """Apply a step after those that wait, or let it wait and return 0."""
        self._catch_up()
        updated = None if self.waiting else self._apply(step)
        if updated is None:
            self.waiting.append(step)
        return updated or 0

    def settle(self) -> None:
        """Wait until all shards answer, and apply the steps that wait."""
        self._supervisor.settle()
        self._learn_all()

    def _apply(self, step: Step) -> int | None:
        """Apply a step, or return None if a shard is lost."""
        self._in_step = True
        try:
            return step(self)
        except IncompleteError:
            return None
        finally:
            self._in_step = False

    def _catch_up(self) -> None:
        """Apply the steps that wait, until a shard is lost."""
        while self.waiting and self._apply(self.waiting[0]) is not None:
            self.waiting.popleft()

    def _learn_all(self) -> None:
        """Apply all steps that wait."""
        while self.waiting:
            self._supervisor.settle()
            self._catch_up()

    # Questions.

    def read(self, contexts: Any) -> Any:
        return self._blank.read(contexts)

    def view(self, user: Hashable, contexts: Any) -> View:
        if not self._in_step:
            self._catch_up()
        (view,), seen = self._views([user], [contexts])
        if self._in_step and seen is not None:
            raise IncompleteError
        return view

    def gather(self, user: Hashable, contexts: Any, view: View, scale: float) -> Near:
        (near,), _ = self._sums([user], [contexts], [view], scale)
        return near

    def look_many(self, users: Sequence[Hashable], contexts: Sequence[Any], scale: float) -> list[Look]:
        """Ask the shards of the users, then sum over shards, each asked once."""
        self._catch_up()
        views, before = self._views(users, contexts)
        near, after = self._sums(users, contexts, views, scale)
        return [Look(*one, after or before) for one in zip(views, near, strict=True)]

    def _views(self, users: Sequence[Hashable], contexts: Sequence[Any]) -> tuple[list[View], Seen | None]:
        """Ask the shard of each user once. If a shard is lost, its users count as unknown."""
        where = self.placement.group(users, range(len(users)))
        calls: dict[int, tuple[Any, ...]] = {}
        for shard, own in where.items():
            calls[shard] = ("view_many", [users[k] for k in own], [contexts[k] for k in own])
        views: list[View | None] = [None] * len(users)
        for shard, found in self._supervisor.ask(calls).items():
            for k, view in zip(where[shard], found, strict=True):
                views[k] = view
        missing = any(view is None for view in views) or not self._supervisor.is_whole()
        seen = self._seen(self._supervisor.up) if missing else None
        return [view or self._blank.view(users[k], contexts[k]) for k, view in enumerate(views)], seen

    def _sums(
        self, users: Sequence[Hashable], contexts: Sequence[Any], views: Sequence[View], scale: float
    ) -> tuple[list[Near], Seen | None]:
        """Sum over shards, each asked once."""
        asked = [Asked(*one) for one in zip(users, contexts, views, strict=True)]
        owners = [self.placement.shard_of(user) for user in users]
        shards = range(self.shards)
        here = {shard: [owner == shard for owner in owners] for shard in shards}
        answers = self._supervisor.ask({s: ("gather_many", asked, here[s], scale) for s in shards})
        sums = [[answers[shard].near[k] for shard in shards if shard in answers] for k in range(len(users))]
        for k, owner in enumerate(owners):
            if owner not in answers:  # the user counts as unknown
                sums[k].append(self._blank.gather(users[k], contexts[k], views[k], scale))
        for shard, answer in answers.items():
            self._counts[shard] = answer.users
        seen = self._seen(list(answers)) if len(answers) < len(shards) else None
        return [_total(parts) for parts in sums], seen

    def neighbours(self, user: Hashable, contexts: Any, view: View, scale: float) -> list[Hashable]:
        owner, asked = self.placement.shard_of(user), Asked(user, contexts, view)
        calls = {shard: ("neighbours", asked, shard == owner, scale) for shard in range(self.shards)}
        found = self._supervisor.ask(calls)
        own = [] if owner in found else [user]
        return [name for shard in sorted(found) for name in found[shard]] + own

    @property
    def users(self) -> Sequence[Hashable]:
        found = self._supervisor.ask_all("users")
        return [name for shard in sorted(found) for name in found[shard]]

    # Changes.

    def update(self, user: Hashable, context: Any, payoff: float) -> int:
        self._supervisor.change("update", {self.placement.shard_of(user): (user, context, payoff)})
        return 1

    def share(
        self, user: Hashable, context: Any, payoff: float, view: View, scale: float, limit: float
    ) -> int:
        owner = self.placement.shard_of(user)
        asked = Asked(user, self.read([context]), view)
        calls = {shard: (asked, shard == owner, payoff, scale, limit) for shard in range(self.shards)}
        return sum(self._supervisor.change("share", calls).values())

    def add(self, user: Hashable) -> None:
        check_user(user)
        self._learn_all()
        self._supervisor.change("add", {self.placement.shard_of(user): (user,)})

    def drop(self, user: Hashable) -> None:
        check_user(user)
        self._learn_all()
        owner = self.placement.shard_of(user)
        if not self._supervisor.ask({owner: ("knows", user)}, anyway=True)[owner]:
            raise UserError(f"user {user!r} is not known, so cannot be dropped")
        self._supervisor.change("drop", {owner: (user,)})

    def tensors(self) -> Tensors:
        """Return the whole state, in the format of one process."""
        self._learn_all()
        return self.whole().tensors()

    def restore(self, tensors: Tensors) -> None:
        whole = make_models(*self._kind)
        whole.restore(tensors)
        self.waiting.clear()
        by_shard = self.placement.group(whole.users, whole.users)
        for shard in range(self.shards):
            own = make_models(*self._kind)
            own.put(whole.part(by_shard.get(shard, [])))
            self._supervisor.reset(shard, own.tensors())
        self.settle()

    def _seen(self, shards: Sequence[int]) -> Seen:
        """Return how many users these shards have."""
        return Seen(sum(self._counts.get(s, 0) for s in shards), len(shards), self.shards)

    def whole(self) -> Shardable:
        """Return all models, in this process."""
        whole = make_models(*self._kind)
        for shard in range(self.shards):  # one at a time, to hold only one of them twice
            whole.put(self._supervisor.ask({shard: ("all_users",)}, anyway=True)[shard])
        return whole


def _total(parts: Sequence[Near]) -> Near:
    """Sum in the order of shards, so that the rounding is the same every time."""
    members, estimate, spread = (sum(column[1:], start=column[0]) for column in zip(*parts, strict=True))
    return Near(np.asarray(members), np.asarray(estimate), np.asarray(spread))
