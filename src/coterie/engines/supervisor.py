"""Supervision of shards: every change is numbered and logged before it is made, and a lost shard is rebuilt.

For each shard there is a snapshot and a log of the changes after it. A lost shard is started again from both, while
the others answer; `when_down` says what a question does meanwhile.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any, Literal, Protocol, final

from coterie.engines.shard import AnyShard, Change, Snapshot
from coterie.errors import ParameterError, UnavailableError
from coterie.models.checks import check_count
from coterie.models.files import Tensors

WhenDown = Literal["wait", "partial", "refuse"]
WHEN_DOWN = ("wait", "partial", "refuse")
ATTEMPTS = 3  # failed rebuilds of a shard in a row, before it is given up

Ticket = Any


class LostError(Exception):
    """A shard is gone, or does not answer. It may or may not have done the last call."""


class Backend(Protocol):
    """Runs shards, in this process or others."""

    def start(self, shard: int, kind: type[AnyShard], *parameters: Any) -> None:
        """Start an empty shard of a class with these parameters; it replaces the one with this number, if any."""

    def stop(self, shard: int) -> None:
        """End a shard."""

    def ask(self, shard: int, method: str, *arguments: Any) -> Ticket:
        """Call a method of a shard, after all earlier calls to it. `take` returns the answer."""

    def is_done(self, ticket: Ticket) -> bool:
        """Return whether an answer has arrived."""

    def take(self, ticket: Ticket, patient: bool = False) -> Any:
        """Wait for an answer. Raises LostError if the shard is gone, or, unless `patient`, after a timeout."""

    def keep(self, snapshot: Snapshot) -> Any:
        """Store a snapshot outside the shard; return a value that `ask` can pass to a shard."""


@final
class Supervisor:
    """Asks shards, changes them, and rebuilds lost ones."""

    def __init__(
        self, backend: Backend, shards: int, when_down: WhenDown, snapshot_every: int, *kind: Any
    ) -> None:
        if when_down not in WHEN_DOWN:
            raise ParameterError(f"when_down is {when_down!r}, expected one of {', '.join(WHEN_DOWN)}")
        self.when_down = when_down
        self.snapshot_every = check_count("snapshot_every", snapshot_every)
        self.backend = backend
        self._kind = kind  # the class of the shards, and its parameters
        self._number = 0  # of the last change
        self._log: list[deque[Change]] = []  # for each shard, the changes after its snapshot
        self._weight: list[int] = []  # of each log
        self._kept: list[Any] = []  # for each shard, its snapshot; None for an empty shard
        self._snapping: dict[int, Ticket] = {}
        self._rebuilding: dict[int, Ticket] = {}
        self._failed: dict[int, int] = {}  # failed rebuilds in a row
        for _ in range(check_count("shards", shards)):
            self.open()

    def __len__(self) -> int:
        """Return how many shards there are."""
        return len(self._log)

    def is_whole(self) -> bool:
        """Return whether no shard is being rebuilt. A loss that no call has met is not known yet."""
        for shard, ticket in list(self._rebuilding.items()):
            if self.backend.is_done(ticket):
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
        """Ask shards and return their answers; without `anyway`, `when_down` says if lost shards are left out."""
        if not self.is_whole():
            self._wait_or_not(anyway)
        tickets = {s: self.backend.ask(s, *call) for s, call in calls.items() if s not in self._rebuilding}
        answers, lost = {}, []
        for shard, ticket in tickets.items():
            try:
                answers[shard] = self.backend.take(ticket)
            except LostError:
                lost.append(shard)
        if lost:
            for shard in lost:
                self._rebuild(shard)
            if self._wait_or_not(anyway):
                answers |= self.ask({shard: calls[shard] for shard in lost}, anyway)
        return answers

    def ask_all(self, method: str, anyway: bool = False) -> dict[int, Any]:
        """Ask every shard the same question."""
        return self.ask(dict.fromkeys(range(len(self)), (method,)), anyway)

    def _wait_or_not(self, anyway: bool) -> bool:
        """Wait for the shards that are being rebuilt, refuse, or return False to go on without them."""
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
        """Log a change, make it once on each of its shards, and return their answers; `weight` is its size there."""
        if not self.is_whole():
            self._wait_or_not(anyway=self.when_down != "refuse")
        self._number += 1
        weights = dict.fromkeys(calls, 1) if weight is None else weight
        changes = {s: Change(self._number, method, call, weights[s]) for s, call in calls.items()}
        for shard, change in changes.items():
            self._log[shard].append(change)
            self._weight[shard] += change.weight
        tickets = {shard: self.backend.ask(shard, "change", change) for shard, change in changes.items()}
        answers = {}
        for shard, ticket in tickets.items():
            try:
                answers[shard] = self.backend.take(ticket)
            except LostError:
                self._rebuild(shard)
        for shard in changes.keys() - answers.keys():
            answers[shard] = self._finish(shard)
        for shard in changes:
            self._shorten_log(shard)
        return answers

    def reset(self, shard: int, tensors: Tensors) -> None:
        """Restart a shard with this state, without waiting for it."""
        self._kept[shard] = self.backend.keep(Snapshot(self._number, tensors))
        self._log[shard].clear()
        self._weight[shard] = 0
        self._rebuild(shard)

    def open(self) -> None:
        """Add an empty shard."""
        self.backend.start(len(self._log), *self._kind)
        self._log.append(deque())
        self._weight.append(0)
        self._kept.append(None)

    def close(self) -> None:
        """End the last shard."""
        shard = len(self) - 1
        self.backend.stop(shard)
        del self._log[shard], self._weight[shard], self._kept[shard]
        self._snapping.pop(shard, None)
        self._rebuilding.pop(shard, None)

    # Snapshots and rebuilds.

    def _shorten_log(self, shard: int) -> None:
        """Take a snapshot of a shard if its log has become long, without waiting for it."""
        ticket = self._snapping.get(shard)
        if ticket is None:
            if self._weight[shard] >= self.snapshot_every:
                self._snapping[shard] = self.backend.ask(shard, "snapshot")
        elif self.backend.is_done(ticket):
            self._snapped(shard)

    def snap(self, shard: int) -> None:
        """Take a snapshot of a shard now."""
        self._snapping.setdefault(shard, self.backend.ask(shard, "snapshot"))
        self._snapped(shard)

    def _snapped(self, shard: int) -> None:
        try:
            snapshot: Snapshot = self.backend.take(self._snapping.pop(shard))
        except LostError:
            return  # the next call will find out
        self._kept[shard] = self.backend.keep(snapshot)
        while self._log[shard] and self._log[shard][0].number <= snapshot.number:
            self._weight[shard] -= self._log[shard].popleft().weight

    def _rebuild(self, shard: int) -> None:
        """Start a shard again and replay its log, without waiting for it."""
        self._snapping.pop(shard, None)
        self.backend.start(shard, *self._kind)
        changes = list(self._log[shard])
        self._rebuilding[shard] = self.backend.ask(shard, "rebuild", self._kept[shard], changes)

    def _finish(self, shard: int) -> Any:
        """Wait until a shard is rebuilt, and return its answer to the last change."""
        while True:
            try:
                answer = self.backend.take(self._rebuilding[shard], patient=True)
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
