"""Vowpal Wabbit's command line: which of its options may be used, and how it is opened."""

import re
import shlex
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from coterie.errors import MissingExtraError, ParameterError

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
SPACES = {
    "quadratic",
    "cubic",
    "interactions",
    "ignore",
    "ignore_linear",
    "keep",
    "marginal",
}  # name namespaces
WORDS = {*SPACES, "cb_type", "loss_function", "hash"}
MOST = {"bit_precision": 22, "bag": 50, "cover": 50}  # so that memory stays below a gigabyte
_OPTION = re.compile(r"--?([A-Za-z][A-Za-z0-9_]*)(?:=(.*))?", re.DOTALL)


class Option(NamedTuple):
    """An option of Vowpal Wabbit, by its long name, with its value."""

    name: str
    value: str | None = None

    @property
    def words(self) -> list[str]:
        """Its words on a command line."""
        return [f"--{self.name}"] if self.value is None else [f"--{self.name}", self.value]

    def __str__(self) -> str:
        """Return it as an argument."""
        return " ".join(self.words)


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


def read_bandit(arguments: str) -> list[Option]:
    """Return the options of a contextual bandit, without the format of its input and its seed, which are ours."""
    options = read_options(arguments)
    if Option("cb_explore_adf") not in options:
        raise ParameterError(f"arguments are {arguments[:200]!r}, expected --cb_explore_adf among them")
    return [option for option in options if option.name not in ("dsjson", "random_seed")]


def open_vowpal(words: list[str]) -> Any:
    """Return a Vowpal Wabbit; raises ParameterError if it refuses its options."""
    if not is_installed():
        raise MissingExtraError("the policy vw needs vowpalwabbit: pip install 'coterie[rivals]'")
    try:
        return import_module("vowpalwabbit").Workspace(arg_list=words)
    except RuntimeError as error:
        raise ParameterError(f"Vowpal Wabbit refuses {' '.join(words)[:200]!r}: {error}") from error
