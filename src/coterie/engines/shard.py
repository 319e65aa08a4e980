"""One shard: the state of some users, in any process.

Questions may come at any time. Every change has a number, and no number is applied twice, so a change that may
have been lost can be sent again.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

from coterie.engines.placement import slot_of
from coterie.models import Near, View, make_models
from coterie.models.files import Tensors
from coterie.models.protocol import NOBODY


class Kind(NamedTuple):
    """The parameters of `make_models`."""

    n_features: int | None
    one_hot: bool


class Change(NamedTuple):
    """A change of a shard: the name of a method of the shard, without its underscore, and the arguments."""

    number: int
    method: str
    arguments: tuple[Any, ...]
    weight: int = 1  # how many users it changes


class Snapshot(NamedTuple):
    """The state of a shard after all changes up to `number`."""

    number: int
    tensors: Tensors


class Asked(NamedTuple):
    """One user's question to all shards."""

    user: Hashable
    contexts: Any
    view: View


class Gathered(NamedTuple):
    """A shard's part of several sums, and how many users the shard has."""

    near: list[Near]
    users: int


class AnyShard(ABC):
    """What all shards share: changes in the order of their numbers, and users by slot while they are moved."""

    def __init__(self) -> None:
        self.number = 0  # of the last change
        self._answer: Any = None  # to the last change
        self._by_slot: dict[int, dict[Hashable, None]] | None = None  # the users, while slots are moved

    @abstractmethod
    def tensors(self) -> Tensors:
        """Return the whole state as arrays."""

    @abstractmethod
    def restore(self, tensors: Tensors) -> None:
        """Replace the state by what `tensors` returned."""

    @abstractmethod
    def users(self) -> Sequence[Hashable]:
        """Return the known users."""

    @abstractmethod
    def knows(self, user: Hashable) -> bool:
        """Return whether a user is known."""

    @abstractmethod
    def _drop(self, user: Hashable) -> None:
        """Forget a user."""

    def snapshot(self) -> Snapshot:
        """Return the whole state."""
        return Snapshot(self.number, self.tensors())

    def change(self, change: Change) -> Any:
        """Apply a change once, and return its answer."""
        if change.number > self.number:
            self._answer = getattr(self, f"_{change.method}")(*change.arguments)
            self.number = change.number
        return self._answer

    def rebuild(self, snapshot: Snapshot | None, changes: Sequence[Change]) -> Any:
        """Restore a snapshot, apply the changes after it, and return the last answer."""
        if snapshot is not None:
            self.restore(snapshot.tensors)
            self.number = snapshot.number
        for change in changes:
            self.change(change)
        return self._answer

    def process(self) -> int:
        """Return the id of the shard's process."""
        return os.getpid()

    def memory(self) -> int:
        """Return the resident memory of this process, in bytes, without memory shared with other processes."""
        if not Path("/proc/self/statm").exists():  # macOS reports only the peak
            import resource

            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        resident, shared = map(int, Path("/proc/self/statm").read_text().split()[1:3])
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")

    # Slots. Which users a slot has is known only while slots are moved.

    def settle(self) -> None:
        """Forget which users each slot has: no more slots are moved."""
        self._by_slot = None

    def _in_slot(self, slot: int) -> list[Hashable]:
        """Return the users of a slot."""
        if self._by_slot is None:
            self._by_slot = {}
            for user in self.users():
                self._note(user)
        return [user for user in self._by_slot.get(slot, ()) if self.knows(user)]

    def _note(self, user: Hashable) -> None:
        """Record a user who may be new."""
        if self._by_slot is not None:
            self._by_slot.setdefault(slot_of(user), {})[user] = None

    def _drop_slot(self, slot: int) -> None:
        for user in self._in_slot(slot):
            self._drop(user)


@final
class Shard(AnyShard):
    """Some users' models."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.models = make_models(*kind)

    # Questions.

    def view_many(self, users: Sequence[Hashable], contexts: Sequence[Any]) -> list[View]:
        """Return the views of users of this shard."""
        return [self.models.view(*one) for one in zip(users, contexts, strict=True)]

    def gather_many(self, asked: Sequence[Asked], here: Sequence[bool], scale: float) -> Gathered:
        """Sum over the neighbours in this shard; `here` says which of the asking users belong to it."""
        users = [one.user if own else NOBODY for one, own in zip(asked, here, strict=True)]
        contexts, views = [one.contexts for one in asked], [one.view for one in asked]
        return Gathered(self.models.gather_many(users, contexts, views, scale), len(self.models))

    def neighbours(self, asked: Asked, here: bool, scale: float) -> list[Hashable]:
        """Return the neighbours in this shard."""
        user = asked.user if here else NOBODY
        return self.models.neighbours(user, asked.contexts, asked.view, scale)

    def users(self) -> list[Hashable]:
        return list(self.models.users)

    def knows(self, user: Hashable) -> bool:
        return user in self.models

    def all_users(self) -> Tensors:
        """Return all users, as other models can add them."""
        return self.models.part(self.models.users)

    def in_slot(self, slot: int) -> Tensors:
        """Return the users of a slot."""
        return self.models.part(self._in_slot(slot))

    def tensors(self) -> Tensors:
        return self.models.tensors()

    def restore(self, tensors: Tensors) -> None:
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
