"""The edge: what comes from a caller is checked here once, and trusted inside."""

import math
from collections.abc import Hashable, Sequence, Set
from typing import Any

import numpy as np

from coterie.arrays import Floats
from coterie.errors import ContextError, CoterieError, ParameterError, PayoffError, UserError
from coterie.models.actions import ActionsLike, ids_of, vectors_of
from coterie.models.ranges import MOST_SET, PRODUCT, TINY

# Normalising in float64 leaves norms a rounding above 1, which changes nothing. Float32, or decimals written to a
# file, leave them up to 1e-4 above: such vectors are scaled.
NORM = 1 + 1e-9
ABOVE = 1 + 1e-4
ONE_HOT = "this policy is one-hot and takes item ids such as strings, integers or tuples, not feature vectors"
PLAIN_ID = "use a string, an integer or a tuple"
PLAIN = frozenset({str, int, bytes, bool})  # ids that cannot be NaN: most are one of these


def read_rows(contexts: ActionsLike, n_features: int | None, name: str = "contexts") -> Floats:
    """Return candidates as float64 (candidates, n_features), of any norm, not yet checked to be finite."""
    check_order(contexts)
    wanted = "one row a candidate" if n_features is None else f"one row of {n_features} features a candidate"
    array = read_numbers(name, vectors_of(contexts), wanted)
    if array.ndim in (1, 2) and array.shape[0] == 0:
        raise ContextError("the candidate list is empty; give at least one candidate")
    if array.ndim != 2 or array.shape[1] == 0:
        raise ContextError(
            f"{name} have shape {array.shape}, expected (candidates, {n_features or 'n_features'}): one row a "
            "candidate"
        )
    if n_features not in (None, array.shape[1]):
        raise ContextError(
            f"context has {array.shape[1]} features, this policy was made with n_features={n_features}"
        )
    return array


def read_vectors(contexts: ActionsLike, n_features: int) -> Floats:
    """Return candidates as float64 (candidates, n_features), each of norm at most 1."""
    array = read_rows(contexts, n_features)
    # One product answers two questions: a NaN or an infinity anywhere makes its row's square not finite.
    squares = np.einsum("kf,kf->k", array, array)
    if not (squares <= NORM * NORM).all():
        k = int(np.argmin(squares <= NORM * NORM))
        if not np.isfinite(array[k]).all():
            raise ContextError(f"context {k} holds NaN or infinity; every feature must be a finite number")
        if not (squares <= ABOVE * ABOVE).all():
            k = int(np.argmin(squares <= ABOVE * ABOVE))
            norm = math.sqrt(squares[k])
            raise ContextError(
                f"context {k} has norm {norm:.6g}, expected at most 1; it is {norm - 1:.3g} over, and only 1e-4 is "
                "taken for rounding; divide all contexts by the largest norm"
            )
        array = array / np.sqrt(np.where(squares > NORM * NORM, squares, 1))[:, None]
    return without_tiny(array)


def without_tiny(values: Floats) -> Floats:
    """Return values in which those below TINY are 0: their squares would be too small for a float."""
    size = np.abs(values)
    tiny = (size < TINY) & (size > 0)
    return np.where(tiny, 0.0, values) if tiny.any() else values


def check_sizes(values: Floats) -> None:
    """Raise if a row of features has a number that is not finite, or larger than PRODUCT."""
    if not (np.abs(values) <= PRODUCT).all():
        k = int(np.argmin((np.abs(values) <= PRODUCT).all(axis=1)))
        if not np.isfinite(values[k]).all():
            raise ContextError(f"context {k} holds NaN or infinity; every feature must be a finite number")
        most = np.abs(values[k]).max()
        raise ContextError(
            f"context {k} has a feature of size {most:g}, expected at most {PRODUCT:g}; use another unit"
        )


def read_numbers(name: str, contexts: object, expected: str) -> Floats:
    """Return contexts as an array of float64, if nothing is lost by that."""
    if isinstance(contexts, np.ndarray) and contexts.dtype == np.float64 and type(contexts) is np.ndarray:
        return contexts
    check_whole(name, contexts, ContextError)
    try:
        array = np.asarray(contexts)
        check_whole(name, array, ContextError)
        return array.astype(np.float64, copy=False)
    except (TypeError, ValueError) as error:
        if isinstance(error, ContextError):
            raise
        raise ContextError(f"{name} must be numbers, {expected} ({error})") from error


def check_whole(name: str, values: Any, error: type[CoterieError]) -> None:
    """Raise if an array, or an array in a list, would lose its mask or its imaginary parts."""
    for part in values if isinstance(values, list | tuple) else (values,):
        if isinstance(part, np.ma.MaskedArray) and np.ma.is_masked(part):
            raise error(
                f"{name} hold masked values, whose numbers mean nothing; fill them, or leave their rows out"
            )
        if isinstance(part, np.ndarray | np.generic) and part.dtype.kind == "c":
            raise error(f"{name} hold complex numbers, expected real ones; give both parts as features")


def check_users(users: Any) -> None:
    """Raise if users come without an order, or masked."""
    if isinstance(users, Set):
        raise UserError(
            f"users is a {type(users).__name__}, which has no order, so that nobody knows whose context is whose; "
            "give a list"
        )
    if isinstance(users, np.ndarray):
        check_whole("users", users, UserError)


def check_pairs(users: Any, contexts: Sequence[ActionsLike]) -> None:
    """Raise unless there is a list of candidates for each user."""
    check_users(users)
    if len(users) != len(contexts):
        raise ContextError(
            f"there are {len(users)} users and {len(contexts)} lists of candidates; give one list for each user"
        )


def check_order(contexts: object) -> None:
    """Raise if candidates come without an order."""
    if isinstance(contexts, Set):
        raise ContextError(
            f"contexts is a {type(contexts).__name__}, which has no order, so that the chosen position would say "
            "nothing; give a list, such as sorted(…)"
        )


def list_candidates(contexts: Any, name: str = "contexts", of: str = "item ids") -> list[Any]:
    """Return candidates as a list, which is not empty; `name` and `of` are for messages."""
    if isinstance(contexts, str | bytes):
        raise ContextError(
            f"{name} is the single string {contexts!r}; give a list of {of}, such as [{contexts!r}]"
        )
    check_order(contexts)
    check_whole(name, contexts, ContextError)
    try:
        items = contexts.tolist() if isinstance(contexts, np.ndarray) else list(contexts)
    except TypeError as error:
        raise ContextError(f"{name} is {contexts!r}, expected a sequence of {of}") from error
    if not items:
        raise ContextError("the candidate list is empty; give at least one")
    return items


def read_items(contexts: ActionsLike, name: str = "contexts", advice: str = ONE_HOT) -> list[Hashable]:
    """Return candidates as a list of hashable item ids; `name` and `advice` are for messages."""
    if type(contexts) is list and contexts and PLAIN.issuperset(map(type, contexts)):
        return [*contexts]
    check_whole(name, contexts, ContextError)
    items = list_candidates(ids_of(contexts), name)
    for item in items:
        check_item(item, advice)
    return items


def check_item(item: Hashable, advice: str = PLAIN_ID) -> None:
    """Raise if `item` cannot be an id."""
    if type(item) not in PLAIN:
        _check_id("item", item, ContextError, f"; {advice}", "")


def check_user(user: Hashable) -> None:
    """Raise if `user` cannot be an id."""
    if type(user) not in PLAIN:
        _check_id("user", user, UserError, f"; {PLAIN_ID}", f"; {PLAIN_ID}")


def _check_id(what: str, name: Hashable, kind: type[CoterieError], hashable: str, equal: str) -> None:
    """Raise if an id has no hash or is not equal to itself; the last two are the advice for each."""
    try:
        hash(name)
    except TypeError as error:
        raise kind(f"{what} id {name!r} is unhashable{hashable}") from error
    if is_nan(name):
        raise kind(f"{what} id {name!r} is not equal to itself, so it would be a new {what} each time{equal}")


def is_nan(name: Hashable) -> bool:
    """Tell whether an id is NaN or NaT, or a tuple that holds one."""
    if isinstance(name, float | np.floating):
        return bool(name != name)
    if isinstance(name, tuple):
        return any(map(is_nan, name))
    return isinstance(name, np.datetime64 | np.timedelta64) and bool(np.isnat(name))


def read_payoff(payoff: Any, most: float = 1.0) -> float:
    """Return `payoff` as a float in [-most, most]."""
    if type(payoff) is float and -most <= payoff <= most:
        return payoff
    number = not isinstance(payoff, str | bytes) and np.ndim(payoff) == 0 and hasattr(payoff, "__float__")
    number = number and not isinstance(payoff, np.complexfloating) and not np.ma.is_masked(payoff)
    if not number:
        raise PayoffError(f"payoff is {payoff!r}, expected a number in [{-most:g}, {most:g}]")
    try:
        value = float(payoff)
    except OverflowError:
        value = math.inf
    if not -most <= value <= most:
        raise PayoffError(
            f"payoff is {value!r}, expected a number in [{-most:g}, {most:g}]; scale payoffs before learning"
        )
    return value


def check_number(name: str, value: Any, least: float = 0.0, most: float = MOST_SET) -> float:
    """Return a number of at least `least` and at most `most`."""
    try:
        number = math.nan if isinstance(value, str | bytes | bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (math.isfinite(number) and number >= least):
        raise ParameterError(f"{name} is {value!r}, expected a finite number of at least {least:g}")
    if number > most:
        raise ParameterError(f"{name} is {value!r}, expected a number of at most {most:g}")
    return number


def check_share(name: str, value: Any) -> float:
    """Return a number between 0 and 1."""
    number = check_number(name, value)
    if number > 1:
        raise ParameterError(f"{name} is {value!r}, expected a share between 0 and 1")
    return number


def check_count(name: str, value: Any, least: int = 1) -> int:
    """Return a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ParameterError(f"{name} is {value!r}, expected a whole number of at least {least}")
    return int(value)


def check_flag(name: str, value: Any) -> bool:
    """Return a truth value."""
    if value is not True and value is not False:
        raise ParameterError(f"{name} is {value!r}, expected True or False")
    return value
