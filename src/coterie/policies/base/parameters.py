"""Parameters that several policies take: α, the factor α·√log(1+t) of every bound, half-lives, and seeds."""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from coterie.errors import ParameterError
from coterie.models.bounds import scale_after
from coterie.models.checks import check_number

Alpha: TypeAlias = float | Callable[[int], float]


def check_alpha(alpha: Any) -> Alpha:
    """Return α: a number of at least 0, or a function of t."""
    return alpha if callable(alpha) else check_number("alpha", alpha)


def read_half_life(half_life: Any) -> tuple[float | None, float]:
    """Return a half-life, and the factor of old payoffs per new one that makes a payoff count half after it.

    None is for payoffs that never fade.

    >>> read_half_life(1), read_half_life(None)
    ((1.0, 0.5), (None, 1.0))
    """
    if half_life is None:
        return None, 1.0
    value = check_number("half_life", half_life)
    if value <= 0:
        raise ParameterError(f"half_life is {half_life!r}, expected a number of payoffs above 0, or None")
    return value, 2.0 ** (-1 / value)


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


Seed = int | np.random.Generator


def make_rng(seed: Any) -> np.random.Generator:
    """Return the generator for a seed; a generator is returned unchanged."""
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError) as error:
        raise ParameterError(
            f"seed is {seed!r}, expected an integer of at least 0 or a numpy.random.Generator"
        ) from error


def make_random(seed: Any) -> tuple[np.random.Generator, int]:
    """Return the stream of a policy's choices, and the number that decides what is random in its learning."""
    rng = make_rng(seed)
    if isinstance(seed, np.random.Generator):
        return rng, int(rng.integers(2**63))
    return rng, int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1)
