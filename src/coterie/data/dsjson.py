"""dsjson: one line of JSON a decision, as Vowpal Wabbit, Personalizer and our own export write it.

It does not tell an action that was excluded from one that was never explored: both have probability 0, and count as
actions that the log could not show. The service's store and its Parquet export know the difference.
"""

import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.interactions import SHARED, Interaction, InteractionLog, check_interaction
from coterie.errors import ContextError, FileError
from coterie.models.features import flatten

LONGEST_LINE = 10_000_000  # characters
OWN = "_coterie"  # where our own export names the user


def read_dsjson(path: Path, user_path: str = "user.id") -> InteractionLog:
    """Read the decisions of a file; lines without one (rewards that came alone, activations) are passed over."""
    found: list[Interaction] = []
    skipped = 0
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                where = f"line {number} of {path}"
                try:
                    if len(line) > LONGEST_LINE:
                        raise ValueError(f"it has more than {LONGEST_LINE} characters")
                    one = _interaction(json.loads(line), user_path)
                except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
                    raise FileError(f"{where} is not a decision in dsjson: {error}") from error
                if one is None:
                    skipped += 1
                else:
                    found.append(check_interaction(where, one))
    except (OSError, UnicodeError) as error:
        raise FileError(f"{path} cannot be read: {error}") from error
    if not found:
        raise FileError(
            f"{path} has no decision in dsjson: a line with _label_cost, _label_probability and c"
        )
    notes = (f"{skipped:,} lines hold no decision that was shown, and were left out.",) if skipped else ()
    return InteractionLog(path.name, found, notes)


def _interaction(line: Any, user_path: str) -> Interaction | None:
    if not isinstance(line, dict):
        raise ValueError("it is not an object")
    if "_outcomes" in line:
        raise ValueError(
            "it has slots (_outcomes), which cannot be evaluated from dsjson; use Parquet or the store"
        )
    if "c" not in line or "_label_cost" not in line or line.get("_skipLearn") is True:
        return None
    context = dict(line["c"])
    listed = context.pop("_multi")
    own = context.pop(OWN, None)
    if own is None:
        user, context = _take_user(context, user_path.split("."))
    else:
        user = own.get("user") or SHARED
    chosen = int(line["_label_Action"]) - 1 if "_label_Action" in line else int(line["_labelIndex"])
    order, given = line.get("a"), line.get("p")
    chances = None
    if order and given:
        if len(order) != len(given) or sorted(order) != list(range(1, len(listed) + 1)):
            raise ValueError(f"a and p do not list the {len(listed)} actions of c")
        likely = dict(zip(order, given, strict=True))
        chances = np.array([float(likely[k + 1]) for k in range(len(listed))])
    features = [_features(action) for action in listed]
    return Interaction(
        user=str(user),
        actions=tuple(_name(action, k) for k, action in enumerate(listed)),
        features=tuple(features) if any(features) else None,
        context=_flat({key: part for key, part in context.items() if not key.startswith("_")}),
        chosen=chosen,
        probability=float(line["_label_probability"]),
        chances=chances,
        reward=-float(line["_label_cost"]) + 0.0,
        baseline=0,
        at=_moment(line.get("Timestamp")),
    )


def _name(action: Mapping[str, Any], k: int) -> str:
    own = action.get("i")
    return str(action.get("_tag") or (own.get("id") if isinstance(own, Mapping) else None) or k)


def _features(action: Mapping[str, Any]) -> dict[str, float]:
    """Return an action's features: in j, as Personalizer and we write them, and in any other namespace."""
    parts = [part for part in _listed(action.get("j")) if isinstance(part, Mapping)]
    rest = {key: part for key, part in action.items() if key not in ("i", "j") and not key.startswith("_")}
    return _flat(*parts, rest)


def _listed(part: Any) -> Sequence[Any]:
    return part if isinstance(part, list) else [] if part is None else [part]


def _flat(*parts: Mapping[str, Any]) -> dict[str, float]:
    try:
        return flatten(parts)
    except ContextError as error:
        raise ValueError(str(error)) from error


def _take_user(context: dict[str, Any], keys: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    """Return the user, and the context without the user's id, which is no feature."""
    value: Any = context
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    if not isinstance(value, str | int | float) or isinstance(value, bool) or value == "":
        for key, part in context.items():  # a list of feature objects under one key
            for k, inner in enumerate(part if isinstance(part, list) else ()):
                if isinstance(inner, Mapping):
                    found, rest = _take_user(dict(inner), keys)
                    if found != SHARED:
                        return found, {**context, key: [*part[:k], rest, *part[k + 1 :]]}
        return SHARED, context
    return value, _without(context, keys)


def _without(part: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    copy = dict(part)
    if len(keys) == 1:
        del copy[keys[0]]
    else:
        copy[keys[0]] = _without(copy[keys[0]], keys[1:])
    return copy


def _moment(text: Any) -> float | None:
    """Return an ISO time as seconds since 1970; None if there is none that can be read."""
    if not isinstance(text, str):
        return None
    try:
        seconds = datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return None
    return seconds if math.isfinite(seconds) else None
