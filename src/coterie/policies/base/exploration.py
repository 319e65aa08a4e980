"""The factor of every confidence bound: α·√log(1+t), where t counts the rounds learned from."""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from coterie.errors import ParameterError
from coterie.models.bounds import scale_after
from coterie.models.checks import check_number

Alpha: TypeAlias = float | Callable[[int], float]


def check_alpha(alpha: Any) -> Alpha:
    """Return α: a number of at least 0, or a function of t."""
    return alpha if callable(alpha) else check_number("alpha", alpha)


def check_half_life(half_life: Any) -> float | None:
    """Return a half-life: a number of payoffs above 0, or None if payoffs never fade."""
    if half_life is None:
        return None
    value = check_number("half_life", half_life)
    if value <= 0:
        raise ParameterError(f"half_life is {half_life!r}, expected a number of payoffs above 0, or None")
    return value


def keep_of(half_life: float | None) -> float:
    """Return the factor of old payoffs per new one, so that a payoff counts half after `half_life` more.

    >>> keep_of(1.0), keep_of(None)
    (0.5, 1.0)
    """
    return 1.0 if half_life is None else 2.0 ** (-1 / half_life)


def scale_at(alpha: Alpha, learned: int) -> float:
    """Return the factor of spreads after `learned` payoffs; the first round has t = 1.

    A number α gives α·√log(1+t), the paper's experiments. A function is the whole factor α(t) of its
    Algorithm 1, as the theory needs it.
    """
    t = learned + 1
    if not callable(alpha):
        return scale_after(alpha, learned)
    value = alpha(t)
    if not (math.isfinite(value) and value >= 0):
        raise ParameterError(f"alpha({t}) is {value!r}, expected a finite number of at least 0")
    return float(value)
