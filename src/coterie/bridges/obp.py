"""To the Open Bandit Pipeline (`obp`): a log as its bandit feedback, and a policy as its action distribution.

In the other direction, `open_interactions` and `evaluate` read a bandit feedback directly. obp need not be installed:
a bandit feedback is a dict of arrays.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.arrays import Floats, JsonObject
from coterie.data.logs.interactions import InteractionLog, open_interactions
from coterie.errors import ParameterError
from coterie.evaluation.targets import encode_interaction, make_target


def to_obp(log: Any, *, features: bool = True) -> JsonObject:
    """Return a log as a bandit feedback of obp; `log` is anything that `open_interactions` takes or returns.

    Actions are numbered in order of appearance. Besides obp's own keys there are user, action_names, context_names
    and action_context_names: obp ignores them, and `open_interactions` reads them back. `pi_b` is there if the log
    has the probabilities of all actions; an action that could not be shown has probability 0. obp has one row of
    features per action, so an action whose features change is a ParameterError; `features=False` leaves features out.

    >>> feedback = to_obp({"action": [0, 1], "reward": [1, 0], "pscore": [0.5, 0.5]})
    >>> feedback["n_actions"], feedback["action"].tolist(), feedback["pscore"].tolist()
    (2, [0, 1], [0.5, 0.5])
    """
    opened = open_interactions(log)
    shown = opened.interactions
    place = _places(opened)
    names = _order(one.context for one in shown)
    context = np.zeros((len(shown), len(names)))
    for t, one in enumerate(shown):
        for name, value in one.context.items():
            context[t, names[name]] = value
    known, known_names = _features(opened, place) if features and opened.has_features else (None, None)
    feedback = {
        "n_rounds": len(shown),
        "n_actions": len(place),
        "context": context,
        "action_context": known,
        "action": np.array([place[one.actions[one.chosen]] for one in shown], dtype=np.int64),
        "position": None,
        "reward": np.array([one.reward for one in shown]),
        "pscore": np.array([one.probability for one in shown]),
        "user": np.array([one.user for one in shown]),
        "action_names": np.array(list(place)),
        "context_names": np.array(list(names), dtype=np.str_),
        "action_context_names": known_names,
    }
    if opened.has_chances:
        feedback["pi_b"] = _spread(opened, place, [one.chances for one in shown])
    return feedback


def action_dist(log: Any, policy: Any) -> Floats:
    """Return the probability that `policy` shows each action in each round of `log`: (rounds, actions, 1), as in obp.

    Actions are numbered as in `to_obp`. The policy is copied; it decides before each record and learns from it
    afterwards, as in `evaluate`. `policy` may also be "uniform", "baseline" or "logged".

    >>> action_dist({"action": [0, 1], "reward": [1, 0], "pscore": [0.5, 0.5]}, "uniform")[:, :, 0].tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    opened = open_interactions(log)
    target = make_target(policy)
    likely = []
    for t, one in enumerate(opened.interactions):
        encoded = encode_interaction(one)
        found = target.probabilities(t, one, encoded)
        if found is None:
            raise ParameterError(
                f"{opened.name} does not have the probabilities of all actions, so {policy!r} has no distribution; "
                "give a log with all probabilities, or another policy"
            )
        likely.append(found)
        target.learn(one, encoded)
    return _spread(opened, _places(opened), likely)


def _places(log: InteractionLog) -> dict[str, int]:
    return _order(one.actions for one in log.interactions)


def _order(groups: Iterable[Iterable[str]]) -> dict[str, int]:
    """Return each name's number, in order of appearance."""
    return {name: k for k, name in enumerate(dict.fromkeys(name for group in groups for name in group))}


def _spread(log: InteractionLog, place: Mapping[str, int], chances: list[Any]) -> Floats:
    """Return the probabilities of offered actions in an array over all actions."""
    found = np.zeros((len(chances), len(place), 1))
    for t, one in enumerate(log.interactions):
        found[t, [place[action] for action in one.actions], 0] = chances[t]
    return found


def _features(log: InteractionLog, place: Mapping[str, int]) -> tuple[Floats, NDArray[np.str_]]:
    """Return the features of each action as a row, and the names of the columns."""
    known: dict[str, Mapping[str, float]] = {}
    for t, one in enumerate(log.interactions):
        features = one.features if one.features is not None else ({},) * len(one.actions)
        for action, own in zip(one.actions, features, strict=True):
            if known.setdefault(action, own) != own:
                raise ParameterError(
                    f"the features of action {action!r} change in record {t} of {log.name}, and obp has one row of "
                    "features per action; to_obp(…, features=False) leaves them out"
                )
    names = _order(known.values())
    table = np.zeros((len(place), len(names)))
    for action, own in known.items():
        for name, value in own.items():
            table[place[action], names[name]] = value
    return table, np.array(list(names), dtype=np.str_)
