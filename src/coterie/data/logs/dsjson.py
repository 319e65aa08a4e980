"""dsjson: one line of JSON per decision, as Vowpal Wabbit, Personalizer and our own export write it.

The format does not distinguish excluded actions from actions that were never explored: both have probability
0, and count as actions that could not be shown. The service's store and its Parquet export do distinguish
them.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from coterie.arrays import JsonObject
from coterie.data.logs.interactions import SHARED, SLOTS, Interaction, InteractionLog, check_interaction
from coterie.errors import ContextError, FileError
from coterie.models.features import flatten, id_at, without

LONGEST_LINE = 10_000_000  # characters
OWN = "_coterie"  # the key under which our own export names the user
T = TypeVar("T")


class DecisionLine(NamedTuple):
    """A line that holds a decision, or one per slot."""

    line: Mapping[str, Any]
    user: str
    is_own: bool  # whether our own export wrote it
    names: list[str]  # of the actions
    actions: Sequence[Mapping[str, Any]]
    context: JsonObject  # features, without the user's id

    @property
    def chosen(self) -> int:
        """The position of the shown action; not checked."""
        line = self.line
        return int(line["_label_Action"]) - 1 if "_label_Action" in line else int(line["_labelIndex"])

    @property
    def reward(self) -> float:
        """What the shown action earned; not checked."""
        return -float(self.line["_label_cost"]) + 0.0


def read_lines(path: Path, read: Callable[[Any], T]) -> Iterator[tuple[str, T]]:
    """Yield what `read` makes of each line, with the line's place for messages; FileError if it cannot."""
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                where = f"line {number} of {path}"
                try:
                    if len(line) > LONGEST_LINE:
                        raise ValueError(f"it has more than {LONGEST_LINE} characters")
                    found = read(json.loads(line))
                except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
                    raise FileError(f"{where} is not a decision in dsjson: {error}") from error
                yield where, found
    except (OSError, UnicodeError) as error:
        raise FileError(f"{path} cannot be read: {error}") from error


def read_decision(line: Any, user_path: str) -> DecisionLine | None:
    """Return the decision of a line; None if it holds none that was shown, such as a reward or an activation."""
    if not isinstance(line, dict):
        raise ValueError("it is not an object")
    has_outcome = "_outcomes" in line or "_label_cost" in line
    if "c" not in line or not has_outcome or line.get("_skipLearn") is True:
        return None
    context = dict(line["c"])
    actions = context.pop("_multi")
    own = context.pop(OWN, None)
    if own is None:
        user, context = _take_user(context, user_path.split("."))
    else:
        user = own.get("user") or SHARED
    names = [_name(action, k) for k, action in enumerate(actions)]
    return DecisionLine(line, str(user), own is not None, names, actions, _public(context))


def feature_parts(action: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return an action's features: the objects in j (as Personalizer and we write them), then other namespaces."""
    own = action.get("j")
    parts = [part for part in (own if isinstance(own, list) else [own]) if isinstance(part, Mapping)]
    rest = {key: part for key, part in _public(action).items() if key not in ("i", "j")}
    return [*parts, rest] if rest else parts


def read_dsjson(path: Path, user_path: str = "user.id") -> InteractionLog:
    """Read the decisions of a file; other lines (separate rewards, activations) are skipped."""
    found: list[Interaction] = []
    skipped = slots = 0
    for where, decisions in read_lines(path, partial(_interactions, user_path=user_path)):
        skipped += not decisions
        slots += len(decisions) if len(decisions) > 1 else 0
        found += [check_interaction(where, one) for one in decisions]
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
    decision = read_decision(line, user_path)
    if decision is None:
        return []
    features = [_flat(*feature_parts(action)) for action in decision.actions]
    whole = Interaction(
        user=decision.user,
        actions=tuple(decision.names),
        features=tuple(features) if any(features) else None,
        context=_flat(decision.context),
        chosen=0,
        probability=1.0,
        chances=None,
        reward=0.0,
        at=_moment(line.get("Timestamp")),
    )
    return _slots(decision, whole) if "_outcomes" in line else [_only_one(decision, whole)]


def _only_one(decision: DecisionLine, whole: Interaction) -> Interaction:
    line, n = decision.line, len(whole.actions)
    order, given = line.get("a"), line.get("p")
    chances = None
    if order and given:
        if len(order) != len(given) or sorted(order) != list(range(1, n + 1)):
            raise ValueError(f"a and p do not list the {n} actions of c")
        likely = dict(zip(order, given, strict=True))
        chances = np.array([float(likely[k + 1]) for k in range(n)])
    return whole._replace(
        chosen=decision.chosen,
        probability=float(line["_label_probability"]),
        chances=chances,
        reward=decision.reward,
    )


def _slots(decision: DecisionLine, whole: Interaction) -> list[Interaction]:
    """Return a decision for each slot: `_a` are the actions that remained, the shown one first, counted from 0."""
    outcomes, described = decision.line["_outcomes"], decision.line["c"].get("_slots") or []
    found = []
    for number, outcome in enumerate(outcomes):
        left, given = [int(k) for k in outcome["_a"]], [float(p) for p in outcome["_p"]]
        if len(left) != len(given) or not set(left) <= set(range(len(whole.actions))):
            raise ValueError(f"_a and _p of slot {number} do not list actions of c")
        order = sorted(range(len(left)), key=lambda k: left[k])  # as listed in c
        own = _public(described[number]) if number < len(described) else {}
        features = whole.features
        one = whole._replace(
            actions=tuple(whole.actions[left[k]] for k in order),
            features=None if features is None else tuple(features[left[k]] for k in order),
            context=_flat(decision.context, own),
            chosen=order.index(0),
            probability=given[0],
            chances=np.array([given[k] for k in order]),
            reward=-float(outcome["_label_cost"]) + 0.0,
        )
        found.append(one)
    return found


def _public(part: Mapping[str, Any]) -> JsonObject:
    """Return an object without the keys that are not features."""
    return {key: value for key, value in part.items() if not key.startswith("_")}


def _name(action: Mapping[str, Any], k: int) -> str:
    own = action.get("i")
    return str(action.get("_tag") or (own.get("id") if isinstance(own, Mapping) else None) or k)


def _flat(*parts: Mapping[str, Any]) -> dict[str, float]:
    try:
        return flatten(parts)
    except ContextError as error:
        raise ValueError(str(error)) from error


def _take_user(context: JsonObject, keys: Sequence[str]) -> tuple[Any, JsonObject]:
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
