"""How fast old payoffs are forgotten: a half-life that is given, or the tests that find one, and their files."""

from typing import Final, Literal

import numpy as np

from coterie.errors import FileError
from coterie.models._kernels.hierarchy.drift import SLOTS, Drift
from coterie.models.files import Tensors, take

LEARNED: Final = "learned"
HalfLife = float | Literal["learned"] | None  # in payoffs of a user; None if all payoffs count the same


def make_drift(half_life: HalfLife) -> Drift:
    """Return fresh arrays. Without tests there are no places for averages."""
    given = 0.0 if half_life is None or half_life == LEARNED else float(half_life)
    sums = np.zeros((2, 2, SLOTS if half_life == LEARNED else 0))
    return Drift(sums, np.ones((2, 2)), np.zeros((2, 2)), np.zeros((2, 2, 2)), np.array([given]))


def half_life_of(drift: Drift) -> HalfLife:
    """Return what `make_drift` was given."""
    return LEARNED if drift.sums.size else present_half_life(drift)


def present_half_life(drift: Drift) -> float | None:
    """Return after how many further payoffs of a user one counts half at present; None if all count the same."""
    return float(drift.half_life[0]) or None


def keep_of(drift: Drift) -> float:
    """Return the factor of a user's old payoffs at each new one."""
    half_life = present_half_life(drift)
    return 1.0 if half_life is None else 2.0 ** (-1.0 / half_life)


def tensors(drift: Drift) -> Tensors:
    """Return everything as arrays, nothing if the half-life is given."""
    return (
        {f"drift_{name}": array.copy() for name, array in drift._asdict().items()} if drift.sums.size else {}
    )


def restored(given: Tensors, half_life: HalfLife) -> Drift:
    """Return what `tensors` returned, if it is consistent."""
    fresh = make_drift(half_life)
    if half_life != LEARNED:
        return fresh
    found = Drift(
        *(take(given, f"drift_{name}", "f", array.shape).copy() for name, array in fresh._asdict().items())
    )
    sound = (
        all(np.isfinite(array).all() for array in found)
        and (found.scale > 0).all()
        and (found.weight >= 0).all()
        and (found.tests[:, :, 1:] >= 0).all()
        and found.half_life[0] >= 0
    )
    if not sound:
        raise FileError("the tests for changes in the model file contradict each other")
    return found
