"""One shard: what is known of some of the users, wherever it runs.

Questions may come at any time. A change comes with a number; a number that was seen is not applied again, so a
change that may or may not have arrived can be sent again.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, final

from coterie.engines.placement import slot_of
from coterie.models import Near, View, make_models
from coterie.models.files import Tensors
from coterie.models.protocol import NOBODY, Eligible


class Kind(NamedTuple):
    """What the users' models are over: the parameters of `make_models`."""

    n_features: int | None
    one_hot: bool
    eligible: Eligible

    def shard(self) -> type["Shard"]:
        """Return what keeps such models."""
        return Shard


class AnyKind(Protocol):
    """What a shard keeps."""

    def shard(self) -> type[Any]:
        """Return the class of a shard that keeps it, which is made from the kind alone."""


class Change(NamedTuple):
    """Something to be learned or forgotten: the name of a method below, and what it takes."""

    number: int
    method: str
    arguments: tuple[Any, ...]
    weight: int = 1  # how many users it is about, where a log of many would be long


class Snapshot(NamedTuple):
    """A shard as it was after all changes up to `number`."""

    number: int
    tensors: Tensors


class Asked(NamedTuple):
    """One user's question to all shards."""

    user: Hashable
    contexts: Any
    view: View


class Gathered(NamedTuple):
    """A shard's part of several sums, and how many users it looked at."""

    near: list[Near]
    users: int


class Numbered(ABC):
    """Applies changes in the order of their numbers, each once."""

    def __init__(self) -> None:
        self.number = 0  # of the last change
        self._answer: Any = None  # to the last change

    @abstractmethod
    def tensors(self) -> Tensors:
        """Return all that is known, as arrays."""

    @abstractmethod
    def restore(self, tensors: Tensors) -> None:
        """Take over what `tensors` returned."""

    def snapshot(self) -> Snapshot:
        """Return all that is known."""
        return Snapshot(self.number, self.tensors())

    def change(self, change: Change) -> Any:
        """Apply a change once, and return its answer."""
        if change.number > self.number:
            self._answer = getattr(self, f"_{change.method}")(*change.arguments)
            self.number = change.number
        return self._answer

    def rebuild(self, snapshot: Snapshot | None, changes: Sequence[Change]) -> Any:
        """Take over a snapshot, apply what came after it, and return the last answer."""
        if snapshot is not None:
            self.restore(snapshot.tensors)
            self.number = snapshot.number
        for change in changes:
            self.change(change)
        return self._answer

    def process(self) -> int:
        """Return the number of the process this shard runs in."""
        return os.getpid()

    def memory(self) -> int:
        """Return the resident memory of this process, in bytes, without what it shares with others."""
        if not Path("/proc/self/statm").exists():  # macOS tells only the most there ever was
            import resource

            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        resident, shared = map(int, Path("/proc/self/statm").read_text().split()[1:3])
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


@final
class Shard(Numbered):
    """Some users' models."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.kind = kind
        self.models = make_models(*kind)
        self._by_slot: dict[int, dict[Hashable, None]] | None = None  # while users are moving

    # Questions.

    def view_many(self, users: Sequence[Hashable], contexts: Sequence[Any]) -> list[View]:
        """Return the opinions of users who belong here."""
        return [self.models.view(*one) for one in zip(users, contexts, strict=True)]

    def gather_many(self, asked: Sequence[Asked], here: Sequence[bool], scale: float) -> Gathered:
        """Sum over the neighbours among this shard's users; `here` says whose user belongs to it."""
        users = [one.user if own else NOBODY for one, own in zip(asked, here, strict=True)]
        contexts, views = [one.contexts for one in asked], [one.view for one in asked]
        return Gathered(self.models.gather_many(users, contexts, views, scale), len(self.models))

    def neighbours(self, asked: Asked, here: bool, scale: float) -> list[Hashable]:
        """Return the neighbours among this shard's users."""
        user = asked.user if here else NOBODY
        return self.models.neighbours(user, asked.contexts, asked.view, scale)

    def users(self) -> list[Hashable]:
        """Return the known users."""
        return list(self.models.users)

    def count(self) -> int:
        """Return how many users are known."""
        return len(self.models)

    def knows(self, user: Hashable) -> bool:
        """Return whether a user is known."""
        return user in self.models

    def everybody(self) -> Tensors:
        """Return all users, as other models can take them over."""
        return self.models.part(self.models.users)

    def in_slot(self, slot: int) -> Tensors:
        """Return the users of a slot."""
        return self.models.part(self._movers(slot))

    def tensors(self) -> Tensors:
        """Return everybody's models."""
        return self.models.tensors()

    def restore(self, tensors: Tensors) -> None:
        """Take over saved models."""
        self.models.restore(tensors)

    # Changes.

    def _update(self, user: Hashable, context: Any, payoff: float) -> int:
        self._note(user)
        return self.models.update(user, context, payoff)

    def _share(self, asked: Asked, here: bool, payoff: float, scale: float, limit: float) -> int:
        if here:
            self._note(asked.user)
        user = asked.user if here else NOBODY
        return self.models.share(user, asked.contexts[0], payoff, asked.view, scale, limit)

    def _add(self, user: Hashable) -> None:
        self._note(user)
        self.models.add(user)

    def _drop(self, user: Hashable) -> None:
        self.models.drop(user)

    def _put(self, part: Tensors) -> None:
        self.models.put(part)
        self._by_slot = None

    def _drop_slot(self, slot: int) -> None:
        for user in self._movers(slot):
            self.models.drop(user)

    # While users are moving, it is known who is in which slot.

    def _movers(self, slot: int) -> list[Hashable]:
        if self._by_slot is None:
            self._by_slot = {}
            for user in self.models.users:
                self._by_slot.setdefault(slot_of(user), {})[user] = None
        return [user for user in self._by_slot.get(slot, ()) if user in self.models]

    def _note(self, user: Hashable) -> None:
        if self._by_slot is not None:
            self._by_slot.setdefault(slot_of(user), {})[user] = None

    def settle(self) -> None:
        """Forget who is in which slot: the moving is over."""
        self._by_slot = None
