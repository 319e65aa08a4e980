"""Vowpal Wabbit itself in an evaluation, with the arguments that Personalizer's learning settings have.

The top-level objects of features are namespaces, as in Personalizer's log: `{"device": {"mobile": true}}` is the
feature `mobile` of the namespace `device`, of which Vowpal Wabbit's options use the first letter. Features of an
action that are in no object are in `j`, its id is in `i`, and those of the context are in `c`. There are no users.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple, final
from urllib.parse import quote

import numpy as np

from coterie.arrays import Floats
from coterie.data.logs.interactions import Interaction
from coterie.errors import MissingExtraError, ParameterError
from coterie.models.encoded import Encoded

NAME = "vw"  # as a policy of an evaluation
SHORT = {"q": "quadratic", "l": "learning_rate", "b": "bit_precision"}
# Options that change how Vowpal Wabbit learns and explores. Others could read or write files, or open ports.
FLAGS = {
    "cb_explore_adf", "dsjson", "squarecb", "regcb", "regcbopt", "softmax", "synthcover", "rnd", "nounif",
    "first_only", "greedify", "adaptive", "invariant", "normalized", "sgd", "coin", "ftrl", "noconstant",
}  # fmt: skip
NUMBERS = {
    "epsilon", "learning_rate", "power_t", "initial_t", "decay_learning_rate", "l1", "l2", "lambda", "gamma_scale",
    "gamma_exponent", "mellowness", "cb_min_cost", "cb_max_cost", "c0", "psi", "cover", "bag", "bit_precision",
    "first", "rnd_alpha", "rnd_invlambda", "ftrl_alpha", "ftrl_beta", "random_seed",
}  # fmt: skip
WORDS = {
    "quadratic", "cubic", "interactions", "ignore", "ignore_linear", "keep", "cb_type", "marginal", "loss_function",
    "hash",
}  # fmt: skip
MOST = {"bit_precision": 22, "bag": 50, "cover": 50}  # so that memory stays below a gigabyte
ALWAYS = ["--quiet", "--no_stdin", "--random_seed", "1"]
_OPTION = re.compile(r"--?([A-Za-z][A-Za-z0-9_]*)(?:=(.*))?", re.DOTALL)


class Option(NamedTuple):
    """An option of Vowpal Wabbit, by its long name, with its value."""

    name: str
    value: str | None = None

    def __str__(self) -> str:
        """Return it as an argument."""
        return f"--{self.name}" if self.value is None else f"--{self.name} {self.value}"


def is_vowpal(arguments: str) -> bool:
    """Return whether arguments are those of Vowpal Wabbit's contextual bandits."""
    return re.search(r"(?:^|\s)--c?cb_explore_adf(?:\s|$)", arguments) is not None


def is_installed() -> bool:
    """Return whether Vowpal Wabbit can be run here."""
    return find_spec("vowpalwabbit") is not None


def read_options(arguments: str) -> list[Option]:
    """Return the options; raises ParameterError for those that are not allowed, and values that do not fit."""
    try:
        words = shlex.split(arguments)
    except ValueError as error:
        raise ParameterError(f"arguments: {error}") from error
    found: list[Option] = []
    while words:
        option = _OPTION.fullmatch(words[0])
        if option is None:
            raise ParameterError(
                f"arguments have {words[0][:80]!r}, expected an option such as --epsilon 0.2"
            )
        # Slots are decisions of their own here, as single ones are.
        named = "cb_explore_adf" if option[1] == "ccb_explore_adf" else option[1]
        name, value = SHORT.get(named, named), option[2]
        words = words[1:]
        if name not in FLAGS:
            if name not in NUMBERS | WORDS:
                raise ParameterError(
                    f"--{name} is no option of Vowpal Wabbit that can be used here; leave it out"
                )
            if value is None:
                if not words:
                    raise ParameterError(f"--{name} has no value")
                value, words = words[0], words[1:]
            _check(name, value)
        found.append(Option(name, value))
    return found


def _check(name: str, value: str) -> None:
    if name in WORDS:
        if not re.fullmatch(r"[^\s/\\]{1,64}", value):
            raise ParameterError(f"--{name} is {value[:80]!r}, expected a word of at most 64 characters")
        return
    try:
        number = float(value)
    except ValueError as error:
        raise ParameterError(f"--{name} is {value[:80]!r}, expected a number") from error
    if not abs(number) <= MOST.get(name, 1e9):
        raise ParameterError(f"--{name} is {value[:80]!r}, expected at most {MOST.get(name, 1e9):g}")


def check_vowpal(parameters: Mapping[str, Any]) -> None:
    """Raise if Vowpal Wabbit cannot be run with these parameters, which are its `arguments`."""
    if parameters.keys() != {"arguments"} or not isinstance(parameters["arguments"], str):
        raise ParameterError(
            "the policy 'vw' takes one parameter, arguments: a text such as '--cb_explore_adf'"
        )
    _open(parameters["arguments"])


def _open(arguments: str) -> Any:
    options = read_options(arguments)
    if Option("cb_explore_adf") not in options:
        raise ParameterError(f"arguments are {arguments[:200]!r}, expected --cb_explore_adf among them")
    if not is_installed():
        raise MissingExtraError("the policy vw needs vowpalwabbit: pip install 'coterie[rivals]'")
    words = [
        word for option in options if option.name not in ("dsjson", "random_seed") for word in _words(option)
    ]
    try:
        return import_module("vowpalwabbit").Workspace(arg_list=[*words, *ALWAYS])
    except RuntimeError as error:
        raise ParameterError(f"Vowpal Wabbit refuses {arguments[:200]!r}: {error}") from error


def _words(option: Option) -> list[str]:
    return [f"--{option.name}"] if option.value is None else [f"--{option.name}", option.value]


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
