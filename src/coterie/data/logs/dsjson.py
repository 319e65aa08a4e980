"""dsjson: one line of JSON per decision, as Vowpal Wabbit, Personalizer and our own export write it.

The format does not distinguish excluded actions from actions that were never explored: both have probability
0, and count as actions that could not be shown. The service's store and its Parquet export do distinguish
them.
"""

import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.logs.interactions import SHARED, SLOTS, Interaction, InteractionLog, check_interaction
from coterie.errors import ContextError, FileError
from coterie.models.features import flatten, id_at, without

LONGEST_LINE = 10_000_000  # characters
OWN = "_coterie"  # the key under which our own export names the user


def read_dsjson(path: Path, user_path: str = "user.id") -> InteractionLog:
    """Read the decisions of a file; other lines (separate rewards, activations) are skipped."""
    found: list[Interaction] = []
    skipped = slots = 0
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                where = f"line {number} of {path}"
                try:
                    if len(line) > LONGEST_LINE:
                        raise ValueError(f"it has more than {LONGEST_LINE} characters")
                    decisions = _interactions(json.loads(line), user_path)
                except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
                    raise FileError(f"{where} is not a decision in dsjson: {error}") from error
                skipped += not decisions
                slots += len(decisions) if len(decisions) > 1 else 0
                found += [check_interaction(where, one) for one in decisions]
    except (OSError, UnicodeError) as error:
        raise FileError(f"{path} cannot be read: {error}") from error
    if not found:
        raise FileError(
            f"{path} has no decision in dsjson: a line with _label_cost, _label_probability and c"
        )
    notes = []
    if skipped:
        notes.append(f"{skipped:,} lines hold no decision that was shown, and were left out.")
    if slots:
        notes.append(SLOTS.format(slots))
    return InteractionLog(path.name, found, tuple(notes))


def _interactions(line: Any, user_path: str) -> list[Interaction]:
    """Return the decision of a line, or one per slot; none if the line has no decision that was shown."""
    if not isinstance(line, dict):
        raise ValueError("it is not an object")
    has_slots = "_outcomes" in line
    if "c" not in line or not (has_slots or "_label_cost" in line) or line.get("_skipLearn") is True:
        return []
    context = dict(line["c"])
    listed = context.pop("_multi")
    own = context.pop(OWN, None)
    if own is None:
        user, context = _take_user(context, user_path.split("."))
    else:
        user = own.get("user") or SHARED
    around = {key: part for key, part in context.items() if not key.startswith("_")}
    names = [_name(action, k) for k, action in enumerate(listed)]
    features = [_features(action) for action in listed]
    whole = Interaction(
        user=str(user),
        actions=tuple(names),
        features=tuple(features) if any(features) else None,
        context=_flat(around),
        chosen=0,
        probability=1.0,
        chances=None,
        reward=0.0,
        at=_moment(line.get("Timestamp")),
    )
    return _slots(line, whole, around) if has_slots else [_only_one(line, whole)]


def _only_one(line: Mapping[str, Any], whole: Interaction) -> Interaction:
    order, given, n = line.get("a"), line.get("p"), len(whole.actions)
    chances = None
    if order and given:
        if len(order) != len(given) or sorted(order) != list(range(1, n + 1)):
            raise ValueError(f"a and p do not list the {n} actions of c")
        likely = dict(zip(order, given, strict=True))
        chances = np.array([float(likely[k + 1]) for k in range(n)])
    return whole._replace(
        chosen=int(line["_label_Action"]) - 1 if "_label_Action" in line else int(line["_labelIndex"]),
        probability=float(line["_label_probability"]),
        chances=chances,
        reward=-float(line["_label_cost"]) + 0.0,
    )


def _slots(line: Mapping[str, Any], whole: Interaction, around: Mapping[str, Any]) -> list[Interaction]:
    """Return a decision for each slot: `_a` are the actions that remained, the shown one first, counted from 0."""
    outcomes, described = line["_outcomes"], line["c"].get("_slots") or []
    found = []
    for number, outcome in enumerate(outcomes):
        left, given = [int(k) for k in outcome["_a"]], [float(p) for p in outcome["_p"]]
        if len(left) != len(given) or not set(left) <= set(range(len(whole.actions))):
            raise ValueError(f"_a and _p of slot {number} do not list actions of c")
        order = sorted(range(len(left)), key=lambda k: left[k])  # as listed in c
        own = described[number] if number < len(described) else {}
        found.append(
            whole._replace(
                actions=tuple(whole.actions[left[k]] for k in order),
                features=None if whole.features is None else tuple(whole.features[left[k]] for k in order),
                context=_flat(around, {key: part for key, part in own.items() if not key.startswith("_")}),
                chosen=order.index(0),
                probability=given[0],
                chances=np.array([given[k] for k in order]),
                reward=-float(outcome["_label_cost"]) + 0.0,
            )
        )
    return found


def _name(action: Mapping[str, Any], k: int) -> str:
    own = action.get("i")
    return str(action.get("_tag") or (own.get("id") if isinstance(own, Mapping) else None) or k)


def _features(action: Mapping[str, Any]) -> dict[str, float]:
    """Return an action's features, from j (as Personalizer and we write them) and all other namespaces."""
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
    """Return the user, and the context without the user's id, which is not a feature."""
    value = id_at(context, keys)
    if value is None:
        for key, part in context.items():  # a list of feature objects under one key
            for k, inner in enumerate(part if isinstance(part, list) else ()):
                if isinstance(inner, Mapping):
                    found, rest = _take_user(dict(inner), keys)
                    if found != SHARED:
                        return found, {**context, key: [*part[:k], rest, *part[k + 1 :]]}
        return SHARED, context
    return value, without(context, keys)


def _moment(text: Any) -> float | None:
    """Return an ISO time as seconds since 1970; None if it cannot be parsed."""
    if not isinstance(text, str):
        return None
    try:
        seconds = datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return None
    return seconds if math.isfinite(seconds) else None
