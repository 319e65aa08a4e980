"""The users' models in several shards, behind the same protocol as in one process.

`view` asks the owner's shard, `gather` is a sum over shards in a fixed order, `share` goes to all of them. This side
keeps no user: it knows which shard has which slot, and the keeper looks after the shards.
"""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, final

import numpy as np

from coterie.engines.keeper import Crew, Keeper, WhenDown
from coterie.engines.moving import move_slots
from coterie.engines.placement import Placement
from coterie.engines.shard import Asked, Kind
from coterie.errors import ParameterError, UserError
from coterie.models import Movable, Near, View, make_models
from coterie.models.checks import check_user
from coterie.models.files import Tensors
from coterie.models.protocol import Seen


@final
class Sharded:
    """Models in shards. See `coterie.models.Models` for what each call means."""

    def __init__(self, crew: Crew, kind: Kind, shards: int, when_down: WhenDown, snapshot_every: int) -> None:
        self._keeper = Keeper(crew, kind, shards, when_down, snapshot_every)
        self._kind = kind
        self._blank = make_models(*kind)  # reads candidates, and has the opinions of a stranger
        self.placement = Placement(shards)
        self.seen: Seen | None = None  # whom the last questions reached; None is everybody
        self._counts: dict[int, int] = {}  # users of each shard, when last heard of

    @property
    def shards(self) -> int:
        """How many shards there are."""
        return len(self._keeper)

    # The protocol: questions.

    def read(self, contexts: Any) -> Any:
        """Check candidates."""
        return self._blank.read(contexts)

    def view(self, user: Hashable, contexts: Any) -> View:
        """Ask the owner's shard."""
        return self.view_many([user], [contexts])[0]

    def view_many(self, users: Sequence[Hashable], contexts: Sequence[Any]) -> list[View]:
        """Ask each owner's shard once."""
        owners = [self.placement.shard_of(user) for user in users]
        where = {shard: [k for k, o in enumerate(owners) if o == shard] for shard in sorted(set(owners))}
        calls = {
            shard: ("view_many", [users[k] for k in own], [contexts[k] for k in own])
            for shard, own in where.items()
        }
        views: list[View | None] = [None] * len(users)
        for shard, found in self._keeper.ask(calls).items():
            for k, view in zip(where[shard], found, strict=True):
                views[k] = view
        missing = any(view is None for view in views) or not self._keeper.is_whole()
        self.seen = self._seen(self._keeper.up) if missing else None
        # Whose shard is down is a stranger meanwhile.
        return [view or self._blank.view(users[k], contexts[k]) for k, view in enumerate(views)]

    def gather(self, user: Hashable, contexts: Any, view: View, scale: float) -> Near:
        """Sum over shards."""
        return self.gather_many([user], [contexts], [view], scale)[0]

    def gather_many(
        self, users: Sequence[Hashable], contexts: Sequence[Any], views: Sequence[View], scale: float
    ) -> list[Near]:
        """Sum over shards, each asked once."""
        if not users:
            return []
        asked = [Asked(*one) for one in zip(users, contexts, views, strict=True)]
        owners = [self.placement.shard_of(user) for user in users]
        shards = range(self.shards)
        calls = {
            shard: ("gather_many", asked, [owner == shard for owner in owners], scale) for shard in shards
        }
        answers = self._keeper.ask(calls)
        sums = [[answers[shard].near[k] for shard in shards if shard in answers] for k in range(len(users))]
        for k, owner in enumerate(owners):
            if owner not in answers:  # as far as is known now, the user is a stranger
                sums[k].append(self._blank.gather(users[k], contexts[k], views[k], scale))
        for shard, answer in answers.items():
            self._counts[shard] = answer.users
        if len(answers) < len(shards):
            self.seen = self._seen(list(answers))
        return [_total(parts) for parts in sums]

    def draw(self, *_: Any) -> Any:
        """Refuse: one random stream cannot be drawn from on several machines in the same order."""
        raise ParameterError("thompson=True needs the users in one process; leave out `engine`")

    def run(self, *_: Any) -> Any:
        """Refuse: the compiled loop is for one process."""
        raise ParameterError("a compiled run needs the users in one process; leave out `engine`")

    def neighbours(self, user: Hashable, contexts: Any, view: View, scale: float) -> list[Hashable]:
        """Ask all shards."""
        owner, asked = self.placement.shard_of(user), Asked(user, contexts, view)
        shards = range(self.shards)
        found = self._keeper.ask({shard: ("neighbours", asked, shard == owner, scale) for shard in shards})
        own = [] if owner in found else [user]
        return [name for shard in sorted(found) for name in found[shard]] + own

    @property
    def users(self) -> Sequence[Hashable]:
        """The known users, shard by shard."""
        found = self._keeper.ask_all("users")
        return [name for shard in sorted(found) for name in found[shard]]

    def __contains__(self, user: Hashable) -> bool:
        """Ask the owner's shard."""
        owner = self.placement.shard_of(user)
        return bool(self._keeper.ask({owner: ("knows", user)}).get(owner, False))

    def __len__(self) -> int:
        """Return how many users are known."""
        return sum(self._keeper.ask_all("count").values())

    def settle(self) -> None:
        """Wait until all shards answer."""
        self._keeper.settle()

    # The protocol: changes.

    def update(self, user: Hashable, context: Any, payoff: float) -> int:
        """Let one user learn."""
        self._keeper.change("update", {self.placement.shard_of(user): (user, context, payoff)})
        return 1

    def share(
        self, user: Hashable, context: Any, payoff: float, view: View, scale: float, limit: float
    ) -> int:
        """Let every shard's confident neighbours learn."""
        owner = self.placement.shard_of(user)
        asked = Asked(user, self.read([context]), view)
        shards = range(self.shards)
        rule = (payoff, scale, limit)
        answers = self._keeper.change("share", {shard: (asked, shard == owner, *rule) for shard in shards})
        return sum(answers.values())

    def add(self, user: Hashable) -> None:
        """Register a user."""
        check_user(user)
        self._keeper.change("add", {self.placement.shard_of(user): (user,)})

    def drop(self, user: Hashable) -> None:
        """Forget a user."""
        check_user(user)
        owner = self.placement.shard_of(user)
        if not self._keeper.ask({owner: ("knows", user)}, anyway=True)[owner]:
            raise UserError(f"user {user!r} is not known, so cannot be dropped")
        self._keeper.change("drop", {owner: (user,)})

    # The protocol: everybody at once.

    def part(self, users: Sequence[Hashable]) -> Tensors:
        """Return some users' models."""
        return self._whole().part(users)

    def put(self, part: Tensors) -> None:
        """Take users over."""
        newcomers = make_models(*self._kind)
        newcomers.put(part)
        known = set(self.users)
        for user in newcomers.users:
            if user in known:
                raise UserError(f"user {user!r} is known already, so cannot be taken over")
        by_shard = self._by_shard(newcomers.users)
        self._keeper.change("put", {shard: (newcomers.part(users),) for shard, users in by_shard.items()})

    def tensors(self) -> Tensors:
        """Return everything, as the models in one process would."""
        return self._whole().tensors()

    def restore(self, tensors: Tensors) -> None:
        """Take over saved arrays, in place of everything."""
        whole = make_models(*self._kind)
        whole.restore(tensors)
        by_shard = self._by_shard(whole.users)
        for shard in range(self.shards):
            own = make_models(*self._kind)
            own.put(whole.part(by_shard.get(shard, [])))
            self._keeper.reset(shard, own.tensors())
        self.settle()

    def rebalance(self, shards: int) -> Iterator[tuple[int, int]]:
        """Move users until `shards` shards share them evenly, slot by slot; yields (slots moved, of how many).

        Between two steps everything else works as always: `for done, total in models.rebalance(8): …`.
        """
        return move_slots(self._keeper, self.placement, shards)

    def close(self) -> None:
        """End all shards."""
        while self.shards:
            self._keeper.close()

    def _seen(self, shards: Sequence[int]) -> Seen:
        """Return whom these shards have."""
        return Seen(sum(self._counts.get(s, 0) for s in shards), len(shards), self.shards)

    def _whole(self) -> Movable:
        """Return everybody's models, in this process."""
        whole = make_models(*self._kind)
        for shard in range(self.shards):  # one at a time: only one part is here twice
            whole.put(self._keeper.ask({shard: ("everybody",)}, anyway=True)[shard])
        return whole

    def _by_shard(self, users: Sequence[Hashable]) -> dict[int, list[Hashable]]:
        found: dict[int, list[Hashable]] = {}
        for user in users:
            found.setdefault(self.placement.shard_of(user), []).append(user)
        return found


def _total(parts: Sequence[Near]) -> Near:
    """Sum in the order of shards, so that the rounding is the same every time."""
    members, estimate, spread = (sum(column[1:], start=column[0]) for column in zip(*parts, strict=True))
    return Near(np.asarray(members), np.asarray(estimate), np.asarray(spread))
