"""The random generator of a policy."""

from typing import Any

import numpy as np

from coterie.errors import ParameterError

Seed = int | np.random.Generator


def make_rng(seed: Any) -> np.random.Generator:
    """Return the generator for a seed; a generator is returned unchanged."""
    try:
        return np.random.default_rng(seed)
    except (TypeError, ValueError) as error:
        raise ParameterError(
            f"seed is {seed!r}, expected an integer of at least 0 or a numpy.random.Generator"
        ) from error
