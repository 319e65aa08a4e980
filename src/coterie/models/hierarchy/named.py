"""Actions of any form: named features, crossed with the user, the action's id and the context."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, final

import numpy as np

from coterie.errors import ContextError, UserError
from coterie.models.batches import Batch, Outcome
from coterie.models.encoded import Encoded, encode_actions, list_actions
from coterie.models.files import Tensors
from coterie.models.hierarchy.effects import Effects, Settings
from coterie.models.hierarchy.representation import EffectPart, Exploration, Group, Scored
from coterie.models.parts import Parts


@final
class NamedModel:
    """A `Representation` that holds at most `slots` effects; the oldest make room for new ones."""

    def __init__(self, slots: int) -> None:
        self.effects = Effects(slots)

    def read(self, contexts: Any) -> tuple[Any, Encoded]:
        if isinstance(contexts, Encoded):
            return contexts, contexts
        shown = contexts if isinstance(contexts, np.ndarray) else list_actions(contexts)
        return shown, encode_actions(shown)

    def read_one(self, context: Any) -> Encoded:
        return context if isinstance(context, Encoded) else encode_actions([context])

    def score(self, user: Hashable, candidates: Encoded, explore: float, floor: float) -> Scored:
        scored = self.effects.score(user, candidates, Settings(explore, floor))
        estimate, width, population, action, context, own, score, chances = scored
        parts = {"population": population, "action": action, "context": context, "user": own}
        return Scored(score, chances, estimate, width, estimate - own, width, parts, 1)

    def contributions(self, user: Hashable, candidates: Encoded, k: int, most: int) -> list[EffectPart]:
        return self.effects.largest(user, candidates, k, most)

    def learn(self, user: Hashable, one: Encoded, payoff: float, now: int) -> None:
        self.effects.learn(user, one, payoff, now)

    def play(self, batch: Batch, exploration: Exploration, learned: int) -> tuple[Outcome, int] | None:
        try:
            items = encode_actions(batch.items)
        except ContextError:  # rounds have a context each, or there are too many items for one list
            return None
        if len(items.hashed.context):
            return None
        explore, floor, rng = exploration
        certain = batch.candidates.shape[1] == 1 or explore == floor == 0
        draws = np.zeros(len(batch.candidates)) if certain else rng.random(len(batch.candidates))
        outcome = self.effects.play(batch._replace(items=items), draws, Settings(explore, floor), learned)
        return outcome, learned + int(outcome.kept.sum())

    def add(self, user: Hashable) -> None:
        self.effects.add(user)

    def drop(self, user: Hashable) -> None:
        if user not in self.effects.users:
            raise UserError(f"user {user!r} is not known, so cannot be dropped")
        self.effects.drop(user)

    @property
    def users(self) -> Sequence[Hashable]:
        return list(self.effects.users)

    @property
    def variances(self) -> dict[str, float]:
        return self.effects.variances

    def groups(self, most: int) -> list[Group]:
        """Return one group: all users."""
        return [Group(1.0, list(self.users), [])]

    def tensors(self) -> Tensors:
        return self.effects.tensors()

    def restore(self, tensors: Tensors) -> None:
        self.effects.restore(tensors)

    def parts(self) -> dict[str, Parts]:
        return self.effects.parts

    def head(self) -> Tensors:
        return self.effects.head()

    def restore_parts(self, head: Tensors, parts: Mapping[str, Iterable[bytes]]) -> None:
        self.effects.restore_parts(head, parts)
