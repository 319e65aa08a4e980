"""Personalizer's learning settings, which are Vowpal Wabbit's arguments, and what of them has a counterpart here.

Evaluations run Vowpal Wabbit itself where it is installed, and so does a challenger with the policy `vw`. A service
that is sent such settings goes on with its own policy, and takes over the exploration (`--epsilon`) and the features
to leave out (`--ignore`).
"""

from typing import NamedTuple

import msgspec

from coterie.data.logs.rules import Config
from coterie.errors import ParameterError
from coterie.policies.base.vowpal_options import Option, is_vowpal, read_options

MAPPED = "x-coterie-policy"  # the header that says what was mapped


class LearningSettings(NamedTuple):
    """What Vowpal Wabbit's arguments say that this service can do too."""

    exploration: float | None = None
    ignored: str = ""
    rest: tuple[Option, ...] = ()  # options without a counterpart

    def applied_to(self, config: Config) -> Config:
        """Return the configuration with the counterparts."""
        exploration = config.exploration if self.exploration is None else self.exploration
        return msgspec.structs.replace(config, exploration=exploration, ignored=self.ignored)

    def told(self, policy: str) -> str:
        """Return what was mapped, for a header: ASCII, and on one line."""
        parts = [f"policy={policy}"]
        parts += [] if self.exploration is None else [f"exploration={self.exploration:g}"]
        parts += [f"ignored={self.ignored}"] if self.ignored else []
        parts += [f"without effect: {' '.join(map(str, self.rest))}"] if self.rest else []
        return "; ".join(parts).encode("ascii", "backslashreplace").decode()


def read_settings(arguments: str) -> LearningSettings | None:
    """Return what Vowpal Wabbit's arguments say; None for others. Raises ParameterError if they cannot be used.

    >>> read_settings("--cb_explore_adf --epsilon 0.2 --ignore A -q GT").told("cab")
    'policy=cab; exploration=0.2; ignored=A; without effect: --quadratic GT'
    """
    if not is_vowpal(arguments):
        return None
    exploration, ignored, rest = None, "", []
    for option in read_options(arguments):
        if option.name == "epsilon" and option.value is not None:
            exploration = float(option.value)
            if not 0 <= exploration <= 1:
                raise ParameterError(f"--epsilon is {option.value}, expected a number from 0 to 1")
        elif option.name == "ignore" and option.value is not None:
            ignored += option.value
        elif option.name not in ("cb_explore_adf", "dsjson"):
            rest.append(option)
    if len(ignored) > 64:
        raise ParameterError(f"--ignore has {len(ignored)} letters, expected at most 64")
    return LearningSettings(exploration, ignored, tuple(rest))
