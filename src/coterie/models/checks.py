"""The edge: what comes from a caller is checked here once, and trusted inside."""

import math
from collections.abc import Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.errors import ContextError, ParameterError, PayoffError, UserError

# Normalising in floating point leaves norms a rounding above 1.
NORM = 1 + 1e-9


def read_vectors(contexts: Any, n_features: int) -> NDArray[np.float64]:
    """Return candidates as float64 (candidates, n_features), each of norm at most 1."""
    try:
        array = np.asarray(contexts, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ContextError(
            f"contexts must be numbers, one row of {n_features} features a candidate ({error})"
        ) from error
    if array.ndim in (1, 2) and array.shape[0] == 0:
        raise ContextError("the candidate list is empty; give at least one context")
    if array.ndim != 2:
        raise ContextError(
            f"contexts have shape {array.shape}, expected (candidates, {n_features}): one row a candidate"
        )
    if array.shape[1] != n_features:
        raise ContextError(
            f"context has {array.shape[1]} features, this policy was made with n_features={n_features}"
        )
    # One product answers two questions: a NaN or an infinity anywhere makes its row's square not finite.
    squares = np.einsum("kf,kf->k", array, array)
    if not (squares <= NORM * NORM).all():
        k = int(np.argmin(squares <= NORM * NORM))
        if not np.isfinite(array[k]).all():
            raise ContextError(f"context {k} holds NaN or infinity; every feature must be a finite number")
        raise ContextError(
            f"context {k} has norm {math.sqrt(squares[k]):.6g}, expected at most 1; scale the features down"
        )
    return array


def read_items(contexts: Any) -> list[Hashable]:
    """Return candidates as a list of hashable item ids."""
    if isinstance(contexts, str | bytes):
        raise ContextError(
            f"contexts is the single string {contexts!r}; give a list of item ids, such as [{contexts!r}]"
        )
    try:
        items = contexts.tolist() if isinstance(contexts, np.ndarray) else list(contexts)
    except TypeError as error:
        raise ContextError(f"contexts is {contexts!r}, expected a sequence of item ids") from error
    if not items:
        raise ContextError("the candidate list is empty; give at least one item id")
    for item in items:
        try:
            hash(item)
        except TypeError as error:
            raise ContextError(
                f"item id {item!r} is unhashable; this policy is one-hot and takes item ids such as "
                "strings, integers or tuples, not feature vectors"
            ) from error
    return items


def check_user(user: Hashable) -> None:
    """Raise if `user` cannot be an id."""
    try:
        hash(user)
    except TypeError as error:
        raise UserError(f"user id {user!r} is unhashable; use a string, an integer or a tuple") from error


def read_payoff(payoff: Any) -> float:
    """Return a payoff as a float in [-1, 1]."""
    number = not isinstance(payoff, str | bytes) and np.ndim(payoff) == 0 and hasattr(payoff, "__float__")
    if not number:
        raise PayoffError(f"payoff is {payoff!r}, expected a number in [-1, 1]")
    value = float(payoff)
    if not -1 <= value <= 1:
        raise PayoffError(f"payoff is {value!r}, expected a number in [-1, 1]; scale payoffs before learning")
    return value


def check_number(name: str, value: Any, least: float = 0.0) -> float:
    """Return a finite number of at least `least`."""
    try:
        number = math.nan if isinstance(value, str | bytes | bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number >= least):
        raise ParameterError(f"{name} is {value!r}, expected a finite number of at least {least:g}")
    return number


def check_count(name: str, value: Any, least: int = 1) -> int:
    """Return an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ParameterError(f"{name} is {value!r}, expected an integer of at least {least}")
    return int(value)


def check_flag(name: str, value: Any) -> bool:
    """Return a truth value."""
    if value is not True and value is not False:
        raise ParameterError(f"{name} is {value!r}, expected True or False")
    return value
