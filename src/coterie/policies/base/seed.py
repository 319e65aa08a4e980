"""What is random in a policy: a stream for its choices, and a number for what it learns."""

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


def make_random(seed: Any) -> tuple[np.random.Generator, int]:
    """Return the stream of a policy's choices, and the number that decides what is random in its learning."""
    rng = make_rng(seed)
    if isinstance(seed, np.random.Generator):
        return rng, int(rng.integers(2**63))
    return rng, int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] >> 1)
