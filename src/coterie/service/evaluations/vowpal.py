"""Vowpal Wabbit itself in an evaluation, with the arguments that Personalizer's learning settings have.

The top-level objects of features are namespaces, as in Personalizer's log: `{"device": {"mobile": true}}` is the
feature `mobile` of the namespace `device`, of which Vowpal Wabbit's options use the first letter. Features of an
action that are in no object are in `j`, its id is in `i`, and those of the context are in `c`. There are no users.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, final
from urllib.parse import quote

import numpy as np

from coterie.arrays import Floats
from coterie.data.logs.interactions import Interaction
from coterie.errors import ParameterError
from coterie.models.encoded import Encoded
from coterie.policies.base.vowpal_options import open_vowpal, read_bandit

NAME = "vw"  # as a policy of an evaluation
ALWAYS = ["--quiet", "--no_stdin", "--random_seed", "1"]


def check_vowpal(parameters: Mapping[str, Any]) -> None:
    """Raise if Vowpal Wabbit cannot be run with these parameters, which are its `arguments`."""
    if parameters.keys() != {"arguments"} or not isinstance(parameters["arguments"], str):
        raise ParameterError(
            "the policy 'vw' takes one parameter, arguments: a text such as '--cb_explore_adf'"
        )
    _open(parameters["arguments"])


def _open(arguments: str) -> Any:
    return open_vowpal([*(word for option in read_bandit(arguments) for word in option.words), *ALWAYS])


@final
class Vowpal:
    """Vowpal Wabbit as `evaluate` replays it: it decides before each record, and learns from it."""

    def __init__(self, arguments: str) -> None:
        self._vw = _open(arguments)
        self._label = self._vw.get_label_type().value
        self._library = import_module("pylibvw")

    def probabilities(self, t: int, one: Interaction, encoded: Encoded) -> Floats:
        """Return each action's probability."""
        examples = self._examples(lines_of(one))
        self._vw.predict_multi(examples)
        chances: list[float] = examples[0].get_action_scores()
        return np.array(chances, dtype=np.float64) / sum(chances)

    def learn(self, one: Interaction, encoded: Encoded) -> None:
        """Learn what the logged action earned, with the probability it had."""
        lines = lines_of(one)
        lines[1 + one.chosen] = f"0:{-one.reward!r}:{one.probability!r} {lines[1 + one.chosen]}"
        self._vw.learn_multi(self._examples(lines))

    def _examples(self, lines: Sequence[str]) -> list[Any]:
        return [self._library.example(self._vw, self._label, line) for line in lines]


def lines_of(one: Interaction) -> list[str]:
    """Return a decision as Vowpal Wabbit reads it: the context, then one line per action.

    >>> lines_of(Interaction("ann", ("a", "b"), None, {"device.mobile": 1.0}, 0, 0.5, None, 1.0))
    ['shared |device mobile:1.0', '|i id=a', '|i id=b']
    """
    features = one.features if one.features is not None else ({},) * len(one.actions)
    rows = [
        f"|i id={_text(name)}{_spaces(own, 'j')}" for name, own in zip(one.actions, features, strict=True)
    ]
    return [f"shared{_spaces(one.context, 'c')}", *rows]


def _spaces(features: Mapping[str, float], alone: str) -> str:
    """Return features by namespaces; those in no object are in the namespace `alone`."""
    found: dict[str, list[str]] = {}
    for name, value in features.items():
        path, equals, text = name.partition("=")
        space, dot, rest = path.partition(".")
        space, rest = (space, rest) if dot else (alone, path)
        found.setdefault(_text(space) or alone, []).append(f"{_text(rest + equals + text)}:{value!r}")
    return "".join(f" |{space} {' '.join(parts)}" for space, parts in found.items())


def _text(name: str) -> str:
    """Return a text without blanks, colons and bars, which are special in Vowpal Wabbit's format."""
    return quote(name, safe="=.,()'")
