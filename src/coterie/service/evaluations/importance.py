"""Feature importance: how much each feature changes the differences between the actions' estimates.

The evaluations' reward model learns the log. Then, for the latest decisions, each feature is left out in turn. Its
score is the change of the actions' estimates, minus the change that all actions share, which does not matter for the
choice. The result has features' names but not their values, so it holds nothing about a single user.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from coterie.data.logs.interactions import Interaction, InteractionLog, Named
from coterie.evaluation.evidence import Span
from coterie.evaluation.reward_model import RewardModel
from coterie.evaluation.targets import encode_interaction

SAMPLE = 500  # decisions
MOST = 200  # features in the result


def scores(log: InteractionLog, on_progress: Callable[[int, int], None]) -> list[dict[str, Any]]:
    """Return the features with their scores, the largest first; the first score is 100."""
    rows = log.interactions
    least = min(one.reward for one in rows)
    model = RewardModel(Span(-1.0 if least < 0 else 0.0, 1.0), len(rows))
    for t, one in enumerate(rows):
        encoded = encode_interaction(one)
        model.predict(one, encoded)
        model.learn(one, encoded)
        if t % 256 == 0:
            on_progress(t, len(rows))
    total: dict[tuple[str, str], float] = {}
    for one in rows[-SAMPLE:]:
        whole = model.predict(one, encode_interaction(one))
        for place, name in _names(one):
            less = _without(one, place, name)
            change = whole - model.predict(less, encode_interaction(less))
            total[place, name] = total.get((place, name), 0.0) + float(np.abs(change - change.mean()).mean())
    largest = max(total.values(), default=0.0)
    ordered = sorted(total.items(), key=lambda pair: -pair[1])[:MOST]
    return [
        {"namespace": place, "name": name, "score": round(100 * value / largest, 3) if largest else 0.0}
        for (place, name), value in ordered
    ]


def _names(one: Interaction) -> set[tuple[str, str]]:
    found = {("context", _plain(name)) for name in one.context}
    for own in one.features or ():
        found |= {("action", _plain(name)) for name in own}
    return found


def _plain(name: str) -> str:
    """Return a feature's name without its value."""
    return name.partition("=")[0]


def _without(one: Interaction, place: str, name: str) -> Interaction:
    def rest(features: Mapping[str, float]) -> Named:
        return {key: value for key, value in features.items() if _plain(key) != name}

    if place == "context":
        return one._replace(context=rest(one.context))
    return one._replace(features=tuple(map(rest, one.features or ())))
