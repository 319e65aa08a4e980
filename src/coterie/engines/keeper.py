"""Keeping shards alive: every change has a number and is logged before it is made, and whoever dies is rebuilt.

For each shard there is a snapshot and the changes after it. A shard that is lost starts anew from the two, while the
others answer; what a question does meanwhile is for `when_down` to say.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any, Literal, Protocol, final

from coterie.engines.shard import AnyKind, Change, Snapshot
from coterie.errors import ParameterError, UnavailableError
from coterie.models.checks import check_count
from coterie.models.files import Tensors

WhenDown = Literal["wait", "partial", "refuse"]
WHEN_DOWN = ("wait", "partial", "refuse")
ATTEMPTS = 3  # rebuilds of a shard that fail in a row, before it is given up

Ticket = Any


class LostError(Exception):
    """A shard is gone, or does not answer; whether it did what it was asked is not known."""


class Crew(Protocol):
    """Where shards run."""

    def start(self, shard: int, kind: AnyKind) -> None:
        """Start an empty shard, in place of the one before if there was one."""

    def stop(self, shard: int) -> None:
        """End a shard."""

    def ask(self, shard: int, method: str, *arguments: Any) -> Ticket:
        """Call a method of the shard, one after the other for each shard; the answer is taken with the ticket."""

    def is_done(self, ticket: Ticket) -> bool:
        """Return whether an answer is there."""

    def take(self, ticket: Ticket, patient: bool = False) -> Any:
        """Wait for an answer. Raises LostError if the shard is gone, or silent for long and one is not patient."""

    def keep(self, snapshot: Snapshot) -> Any:
        """Keep a snapshot where the loss of a shard does not reach; returns what `ask` can pass to a shard."""


@final
class Keeper:
    """Asks shards, changes them, and rebuilds those that are lost."""

    def __init__(
        self, crew: Crew, kind: AnyKind, shards: int, when_down: WhenDown, snapshot_every: int
    ) -> None:
        if when_down not in WHEN_DOWN:
            raise ParameterError(f"when_down is {when_down!r}, expected one of {', '.join(WHEN_DOWN)}")
        self.when_down = when_down
        self.snapshot_every = check_count("snapshot_every", snapshot_every)
        self.crew = crew
        self._kind = kind
        self._number = 0  # of the last change
        self._log: list[deque[Change]] = []  # for each shard, the changes after its snapshot
        self._weight: list[int] = []  # of each log
        self._kept: list[Any] = []  # for each shard, its snapshot; None is an empty shard
        self._snapping: dict[int, Ticket] = {}
        self._rebuilding: dict[int, Ticket] = {}
        self._failed: dict[int, int] = {}  # rebuilds that failed in a row
        for _ in range(check_count("shards", shards)):
            self.open()

    def __len__(self) -> int:
        """Return how many shards there are."""
        return len(self._log)

    def is_whole(self) -> bool:
        """Return whether all shards answer, as far as is known; one that died is being rebuilt meanwhile."""
        for shard, ticket in list(self._rebuilding.items()):
            if self.crew.is_done(ticket):
                self._finish(shard)
        return not self._rebuilding

    def is_ready(self) -> bool:
        """Return whether all shards answer; first wait for them or refuse, as `when_down` says."""
        return self.is_whole() or self._wait_or_not(anyway=False)

    @property
    def up(self) -> list[int]:
        """The shards that are not being rebuilt."""
        return [shard for shard in range(len(self)) if shard not in self._rebuilding]

    def settle(self) -> None:
        """Wait until all shards answer."""
        for shard in sorted(self._rebuilding):
            self._finish(shard)

    # Questions.

    def ask(self, calls: Mapping[int, tuple[Any, ...]], anyway: bool = False) -> dict[int, Any]:
        """Ask shards and return their answers; without those that are down, if answers may be partial.

        With `anyway`, all answers are waited for, whatever `when_down` says.
        """
        if not self.is_whole():
            self._wait_or_not(anyway)
        tickets = {s: self.crew.ask(s, *call) for s, call in calls.items() if s not in self._rebuilding}
        answers, lost = {}, []
        for shard, ticket in tickets.items():
            try:
                answers[shard] = self.crew.take(ticket)
            except LostError:
                lost.append(shard)
        if lost:
            for shard in lost:
                self._rebuild(shard)
            if self._wait_or_not(anyway):
                answers |= self.ask({shard: calls[shard] for shard in lost}, anyway)
        return answers

    def ask_all(self, method: str, anyway: bool = False) -> dict[int, Any]:
        """Ask every shard the same."""
        return self.ask(dict.fromkeys(range(len(self)), (method,)), anyway)

    def _wait_or_not(self, anyway: bool) -> bool:
        """Wait for those that are being rebuilt, or refuse, or go on without them and return False."""
        if anyway or self.when_down == "wait":
            self.settle()
            return True
        if self.when_down == "refuse":
            raise UnavailableError(
                f"{len(self._rebuilding)} of {len(self)} shards are down and being rebuilt; try again in a moment"
            )
        return False

    # Changes.

    def change(
        self, method: str, calls: Mapping[int, tuple[Any, ...]], weight: Mapping[int, int] | None = None
    ) -> dict[int, Any]:
        """Log a change, then make it on its shards, and return their answers. All of them get it, once.

        `weight` says as how many changes it counts on a shard, if not as one.
        """
        if not self.is_whole():
            self._wait_or_not(anyway=self.when_down != "refuse")
        self._number += 1
        weights = dict.fromkeys(calls, 1) if weight is None else weight
        changes = {s: Change(self._number, method, call, weights[s]) for s, call in calls.items()}
        for shard, change in changes.items():
            self._log[shard].append(change)
            self._weight[shard] += change.weight
        tickets = {shard: self.crew.ask(shard, "change", change) for shard, change in changes.items()}
        answers = {}
        for shard, ticket in tickets.items():
            try:
                answers[shard] = self.crew.take(ticket)
            except LostError:
                self._rebuild(shard)
        for shard in changes.keys() - answers.keys():
            answers[shard] = self._finish(shard)
        for shard in changes:
            self._look_after(shard)
        return answers

    def reset(self, shard: int, tensors: Tensors) -> None:
        """Let a shard begin anew from these models, without waiting for it."""
        self._kept[shard] = self.crew.keep(Snapshot(self._number, tensors))
        self._log[shard].clear()
        self._weight[shard] = 0
        self._rebuild(shard)

    def open(self) -> None:
        """Add an empty shard."""
        self.crew.start(len(self._log), self._kind)
        self._log.append(deque())
        self._weight.append(0)
        self._kept.append(None)

    def close(self) -> None:
        """End the last shard."""
        shard = len(self) - 1
        self.crew.stop(shard)
        del self._log[shard], self._weight[shard], self._kept[shard]
        self._snapping.pop(shard, None)
        self._rebuilding.pop(shard, None)

    # Snapshots, and what is done with them.

    def _look_after(self, shard: int) -> None:
        """Take a snapshot of a shard whose log has become long, without waiting for it."""
        ticket = self._snapping.get(shard)
        if ticket is None:
            if self._weight[shard] >= self.snapshot_every:
                self._snapping[shard] = self.crew.ask(shard, "snapshot")
        elif self.crew.is_done(ticket):
            self._snapped(shard)

    def snap(self, shard: int) -> None:
        """Take a snapshot of a shard now."""
        self._snapping.setdefault(shard, self.crew.ask(shard, "snapshot"))
        self._snapped(shard)

    def _snapped(self, shard: int) -> None:
        try:
            snapshot: Snapshot = self.crew.take(self._snapping.pop(shard))
        except LostError:
            return  # the next question finds out
        self._kept[shard] = self.crew.keep(snapshot)
        while self._log[shard] and self._log[shard][0].number <= snapshot.number:
            self._weight[shard] -= self._log[shard].popleft().weight

    def _rebuild(self, shard: int) -> None:
        """Start a shard anew and let it catch up, without waiting for it."""
        self._snapping.pop(shard, None)
        self.crew.start(shard, self._kind)
        changes = list(self._log[shard])
        self._rebuilding[shard] = self.crew.ask(shard, "rebuild", self._kept[shard], changes)

    def _finish(self, shard: int) -> Any:
        """Wait until a shard has caught up, and return its answer to the last change."""
        while True:
            try:
                answer = self.crew.take(self._rebuilding[shard], patient=True)
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
