"""Policies as the service runs them: with its exploration, and separate models for ids and for features."""

from typing import Any, final

import msgspec
import numpy as np

from coterie.arrays import Floats
from coterie.data.logs.interactions import Interaction, Named
from coterie.data.logs.records import Kind
from coterie.data.logs.rules import Config
from coterie.evaluation.targets import Learner, encode_interaction
from coterie.models.encoded import Encoded
from coterie.service.core.policy_config import accepts, make_policy, possible

PER_RECORD = 64  # effects that a record may add; a full table drops old ones


@final
class ServedPolicy:
    """A policy as `evaluate` replays it."""

    def __init__(self, config: Config, records: int) -> None:
        self.exploration = 1.0 if config.policy == "random" else config.exploration
        self.ignored = config.ignored
        self.draws = config.explore == "policy" and config.exploration > 0  # else the best is shown
        given: dict[str, Any] = dict(config.parameters)
        if accepts(config.policy, "slots"):
            given["slots"] = min(given.get("slots", 1 << 22), max(PER_RECORD * records, 4096))
        used = msgspec.structs.replace(config, parameters=given)
        self.learners = {kind: Learner(make_policy(used, kind)) for kind in possible(used)}

    def _seen(self, one: Interaction, encoded: Encoded) -> tuple[Interaction, Encoded]:
        """Return a decision without the features that the service leaves out."""
        if not self.ignored:
            return one, encoded

        def kept(features: Named) -> Named:
            return {
                name: value
                for name, value in features.items()
                if name[:1] not in self.ignored or "." not in name.partition("=")[0]
            }

        features = None if one.features is None else tuple(map(kept, one.features))
        left = one._replace(context=kept(one.context), features=features)
        return left, encode_interaction(left)

    def _of(self, one: Interaction) -> Learner | None:
        kind: Kind = "vectors" if one.features is not None else "items"
        return self.learners.get("model") or self.learners.get(kind)

    def probabilities(self, t: int, one: Interaction, encoded: Encoded) -> Floats:
        """Return each action's probability."""
        n = len(one.actions)
        one, encoded = self._seen(one, encoded)
        learner = self._of(one)
        if learner is None:  # the policy cannot use such actions, and the service would refuse them
            return np.full(n, 1 / n)
        likely = learner.probabilities(t, one, encoded)
        if not self.draws:
            likely = np.eye(n)[likely.argmax()]
        return (1 - self.exploration) * likely + self.exploration / n

    def learn(self, one: Interaction, encoded: Encoded) -> None:
        """Learn what the logged action earned."""
        one, encoded = self._seen(one, encoded)
        learner = self._of(one)
        if learner is not None:
            learner.learn(one, encoded)
