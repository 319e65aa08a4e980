"""The users' models in several shards, behind the same protocol as in one process.

`view` asks the owner's shard, `gather` is a sum over shards in a fixed order, `share` goes to all of them. This side
keeps no user: it has the table of slots, a number for every change, and for each shard a snapshot with the
changes after it, from which a shard that dies is rebuilt.
"""

from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, final

import numpy as np

from coterie.engines.placement import Placement
from coterie.engines.shard import Asked, Change, Kind, Snapshot
from coterie.errors import ParameterError, UnavailableError, UserError
from coterie.models import Models, Near, View, make_models
from coterie.models.checks import check_count, check_user
from coterie.models.files import Tensors
from coterie.models.protocol import Seen

WhenDown = Literal["wait", "partial", "refuse"]
WHEN_DOWN = ("wait", "partial", "refuse")
ATTEMPTS = 3  # rebuilds of a shard that fail in a row, before it is given up

Ticket = Any


class LostError(Exception):
    """A shard is gone, or does not answer; whether it did what it was asked is not known."""


class Crew(Protocol):
    """Where shards run."""

    def start(self, shard: int, kind: Kind) -> None:
        """Start an empty shard, in place of the one before if there was one."""

    def stop(self, shard: int) -> None:
        """End a shard."""

    def ask(self, shard: int, method: str, *arguments: Any) -> Ticket:
        """Call a method of `Shard`, one after the other for each shard; the answer is taken with the ticket."""

    def is_done(self, ticket: Ticket) -> bool:
        """Return whether an answer is there."""

    def take(self, ticket: Ticket, patient: bool = False) -> Any:
        """Wait for an answer. Raises LostError if the shard is gone, or silent for long and one is not patient."""

    def keep(self, snapshot: Snapshot) -> Any:
        """Keep a snapshot where the loss of a shard does not reach; returns what `ask` can pass to a shard."""


@final
class Sharded:
    """Models in shards. See `coterie.models.Models` for what each call means."""

    def __init__(self, crew: Crew, kind: Kind, shards: int, when_down: WhenDown, snapshot_every: int) -> None:
        if when_down not in WHEN_DOWN:
            raise ParameterError(f"when_down is {when_down!r}, expected one of {', '.join(WHEN_DOWN)}")
        self.when_down = when_down
        self.snapshot_every = check_count("snapshot_every", snapshot_every)
        self.placement = Placement(check_count("shards", shards))
        self.seen: Seen | None = None  # whom the last questions reached; None is everybody
        self._counts: dict[int, int] = {}  # users of each shard, when last heard of
        self._kind = kind
        self._blank = make_models(*kind)  # reads candidates, and has the opinions of a stranger
        self._crew = crew
        self._number = 0  # of the last change
        self._log: list[deque[Change]] = []  # for each shard, the changes after its snapshot
        self._kept: list[Any] = []  # for each shard, its snapshot; None is an empty shard
        self._snapping: dict[int, Ticket] = {}
        self._rebuilding: dict[int, Ticket] = {}
        self._failed: dict[int, int] = {}  # rebuilds that failed in a row
        for _ in range(shards):
            self._open()

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
        for shard, found in self._ask(calls).items():
            for k, view in zip(where[shard], found, strict=True):
                views[k] = view
        self.seen = self._seen() if self._rebuilding else None
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
        shards = range(self.placement.shards)
        calls = {
            shard: ("gather_many", asked, [owner == shard for owner in owners], scale) for shard in shards
        }
        answers = self._ask(calls)
        sums = [[answers[shard].near[k] for shard in shards if shard in answers] for k in range(len(users))]
        for k, owner in enumerate(owners):
            if owner not in answers:  # as far as is known now, the user is a stranger
                sums[k].append(self._blank.gather(users[k], contexts[k], views[k], scale))
        for shard, answer in answers.items():
            self._counts[shard] = answer.users
        if len(answers) < len(shards):
            self.seen = self._seen(answers)
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
        shards = range(self.placement.shards)
        found = self._ask({shard: ("neighbours", asked, shard == owner, scale) for shard in shards})
        own = [] if owner in found else [user]
        return [name for shard in sorted(found) for name in found[shard]] + own

    @property
    def users(self) -> Sequence[Hashable]:
        """The known users, shard by shard."""
        found = self._ask_all("users")
        return [name for shard in sorted(found) for name in found[shard]]

    def __contains__(self, user: Hashable) -> bool:
        """Ask the owner's shard."""
        owner = self.placement.shard_of(user)
        return bool(self._ask({owner: ("knows", user)}).get(owner, False))

    def __len__(self) -> int:
        """Return how many users are known."""
        return sum(self._ask_all("count").values())

    def settle(self) -> None:
        """Wait until all shards answer."""
        for shard in sorted(self._rebuilding):
            self._finish(shard)

    def is_whole(self) -> bool:
        """Return whether all shards answer, as far as is known; one that died is being rebuilt meanwhile."""
        for shard, ticket in list(self._rebuilding.items()):
            if self._crew.is_done(ticket):
                self._finish(shard)
        return not self._rebuilding

    # The protocol: changes.

    def update(self, user: Hashable, context: Any, payoff: float) -> int:
        """Let one user learn."""
        self._change("update", {self.placement.shard_of(user): (user, context, payoff)})
        return 1

    def share(
        self, user: Hashable, context: Any, payoff: float, view: View, scale: float, limit: float
    ) -> int:
        """Let every shard's confident neighbours learn."""
        owner = self.placement.shard_of(user)
        asked = Asked(user, self.read([context]), view)
        shards = range(self.placement.shards)
        rule = (payoff, scale, limit)
        answers = self._change("share", {shard: (asked, shard == owner, *rule) for shard in shards})
        return sum(answers.values())

    def add(self, user: Hashable) -> None:
        """Register a user."""
        check_user(user)
        self._change("add", {self.placement.shard_of(user): (user,)})

    def drop(self, user: Hashable) -> None:
        """Forget a user."""
        check_user(user)
        self.settle()
        if user not in self:
            raise UserError(f"user {user!r} is not known, so cannot be dropped")
        self._change("drop", {self.placement.shard_of(user): (user,)})

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
        self._change("put", {shard: (newcomers.part(users),) for shard, users in by_shard.items()})

    def tensors(self) -> Tensors:
        """Return everything, as the models in one process would."""
        return self._whole().tensors()

    def restore(self, tensors: Tensors) -> None:
        """Take over saved arrays, in place of everything."""
        whole = make_models(*self._kind)
        whole.restore(tensors)
        by_shard = self._by_shard(whole.users)
        for shard in range(self.placement.shards):
            own = make_models(*self._kind)
            own.put(whole.part(by_shard.get(shard, [])))
            self._kept[shard] = self._crew.keep(Snapshot(self._number, own.tensors()))
            self._log[shard].clear()
            self._snapping.pop(shard, None)
            self._rebuild(shard)
        self.settle()

    def rebalance(self, shards: int) -> Iterator[tuple[int, int]]:
        """Move users until `shards` shards share them evenly, slot by slot; yields (slots moved, of how many).

        Between two steps everything else works as always: `for done, total in models.rebalance(8): …`.
        """
        check_count("shards", shards)
        self.settle()
        moves = self.placement.moves_to(shards)
        while self.placement.shards < shards:
            self._open()
            self.placement.shards += 1
        for done, (slot, source, target) in enumerate(moves, 1):
            self.settle()
            part = self._ask({source: ("in_slot", slot)})[source]
            self._change("put", {target: (part,)})
            self._change("drop_slot", {source: (slot,)})
            self.placement.table[slot] = target
            yield done, len(moves)
        self.settle()
        self._ask_all("settle")
        while self.placement.shards > shards:
            self.placement.shards -= 1
            self._close(self.placement.shards)
        for shard in range(shards):
            self._snap(shard)  # so that nobody's models stay in the log

    def close(self) -> None:
        """End all shards."""
        while self._log:
            self._close(len(self._log) - 1)

    # Shards: asking, changing, losing, rebuilding.

    def _ask_all(self, method: str) -> dict[int, Any]:
        return self._ask(dict.fromkeys(range(self.placement.shards), (method,)))

    def _ask(self, calls: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Ask shards and return their answers; without those that are down, if answers may be partial."""
        if not self.is_whole():
            self._decide_what_is_missing()
        tickets = {s: self._crew.ask(s, *call) for s, call in calls.items() if s not in self._rebuilding}
        answers, lost = {}, []
        for shard, ticket in tickets.items():
            try:
                answers[shard] = self._crew.take(ticket)
            except LostError:
                lost.append(shard)
        if lost:
            for shard in lost:
                self._rebuild(shard)
            self._decide_what_is_missing()
            if self.when_down == "wait":
                answers |= self._ask({shard: calls[shard] for shard in lost})
        return answers

    def _seen(self, shards: Iterable[int] | None = None) -> Seen:
        """Return whom these shards have, or all that are not down."""
        if shards is None:
            shards = [shard for shard in range(self.placement.shards) if shard not in self._rebuilding]
        found = list(shards)
        return Seen(sum(self._counts.get(s, 0) for s in found), len(found), self.placement.shards)

    def _decide_what_is_missing(self) -> None:
        if self.when_down == "wait":
            self.settle()
        elif self.when_down == "refuse":
            raise UnavailableError(
                f"{len(self._rebuilding)} of {self.placement.shards} shards are down and being rebuilt; "
                "try again in a moment"
            )

    def _change(self, method: str, calls: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Log a change, then make it on its shards, and return their answers. All of them get it, once."""
        if not self.is_whole():
            if self.when_down == "refuse":
                self._decide_what_is_missing()
            self.settle()
        self._number += 1
        changes = {shard: Change(self._number, method, call) for shard, call in calls.items()}
        for shard, change in changes.items():
            self._log[shard].append(change)
        tickets = {shard: self._crew.ask(shard, "change", change) for shard, change in changes.items()}
        answers = {}
        for shard, ticket in tickets.items():
            try:
                answers[shard] = self._crew.take(ticket)
            except LostError:
                self._rebuild(shard)
        for shard in changes.keys() - answers.keys():
            answers[shard] = self._finish(shard)
        for shard in changes:
            self._look_after(shard)
        return answers

    def _look_after(self, shard: int) -> None:
        """Take a snapshot of a shard whose log has become long, without waiting for it."""
        ticket = self._snapping.get(shard)
        if ticket is None:
            if len(self._log[shard]) >= self.snapshot_every:
                self._snapping[shard] = self._crew.ask(shard, "snapshot")
        elif self._crew.is_done(ticket):
            self._snapped(shard)

    def _snap(self, shard: int) -> None:
        self._snapping.setdefault(shard, self._crew.ask(shard, "snapshot"))
        self._snapped(shard)

    def _snapped(self, shard: int) -> None:
        try:
            snapshot: Snapshot = self._crew.take(self._snapping.pop(shard))
        except LostError:
            return  # the next question finds out
        self._kept[shard] = self._crew.keep(snapshot)
        while self._log[shard] and self._log[shard][0].number <= snapshot.number:
            self._log[shard].popleft()

    def _rebuild(self, shard: int) -> None:
        """Start a shard anew and let it catch up, without waiting for it."""
        self._snapping.pop(shard, None)
        self._crew.start(shard, self._kind)
        changes = list(self._log[shard])
        self._rebuilding[shard] = self._crew.ask(shard, "rebuild", self._kept[shard], changes)

    def _finish(self, shard: int) -> Any:
        """Wait until a shard has caught up, and return its answer to the last change."""
        while True:
            try:
                answer = self._crew.take(self._rebuilding[shard], patient=True)
            except LostError as error:
                self._failed[shard] = self._failed.get(shard, 0) + 1
                if self._failed[shard] >= ATTEMPTS:
                    raise UnavailableError(
                        f"shard {shard} died {ATTEMPTS} times while it was rebuilt ({error}); see why in Ray's "
                        "logs (often memory), then start again from the last saved file or log"
                    ) from error
                self._rebuild(shard)
            else:
                del self._rebuilding[shard]
                self._failed.pop(shard, None)
                return answer

    def _open(self) -> None:
        self._crew.start(len(self._log), self._kind)
        self._log.append(deque())
        self._kept.append(None)

    def _close(self, shard: int) -> None:
        self._crew.stop(shard)
        del self._log[shard], self._kept[shard]
        self._snapping.pop(shard, None)
        self._rebuilding.pop(shard, None)

    def _whole(self) -> Models:
        """Return everybody's models, in this process."""
        self.settle()
        whole = make_models(*self._kind)
        for shard in range(self.placement.shards):  # one at a time: only one part is here twice
            whole.put(self._ask({shard: ("everybody",)})[shard])
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
