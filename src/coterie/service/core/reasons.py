"""Why a decision was made: packed for the log, and unpacked with names."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from coterie.data.logs.records import Rank
from coterie.models.features import flatten
from coterie.models.hierarchy.effects import NAMES, EffectPart
from coterie.policies import Decision

# The rows of `Rank.reasons`: of policies with neighbours, and of the one model of ids and features.
REASONS = ("estimate", "width", "neighbours", "neighbours_estimate", "neighbours_width")
PARTS = ("estimate", "width", "population", "action", "context", "user")
LARGEST = 8  # parts that are kept of the choice
PART = np.dtype([("kind", "u1"), ("action", "<i2"), ("context", "<i2"), ("value", "<f4")])


class Contribution(Struct, frozen=True, rename="camel"):
    """What one effect added to the estimate of the chosen action."""

    kind: str
    features: list[str]  # by name, the context's first; empty for the population and the user
    value: float


def pack_reasons(decision: Decision) -> bytes:
    """Return one column per candidate, float32."""
    parts = decision.parts
    if parts is None or not set(PARTS[2:]) <= parts.keys():
        rest: Sequence[Any] = (decision.members, decision.near_estimate, decision.near_width)
    else:
        rest = [parts[name] for name in PARTS[2:]]
    return np.array((decision.estimate, decision.width, *rest), dtype=np.float32).tobytes()


def rows_of(record: Rank) -> list[dict[str, float]] | None:
    """Return the reasons for each action that was not excluded."""
    if record.reasons is None:
        return None
    table = np.frombuffer(record.reasons, dtype=np.float32)
    table = table.reshape(-1, len(record.open_to))
    names = REASONS if len(table) == len(REASONS) else PARTS
    return [dict(zip(names, map(float, column), strict=True)) for column in table.T]


def pack_parts(parts: Sequence[EffectPart]) -> bytes | None:
    """Return parts as bytes; the names are with the features in the same record."""
    if not parts:
        return None
    rows = [(NAMES.index(part.kind), part.action, part.context, part.value) for part in parts]
    return np.array(rows, dtype=PART).tobytes()


def contributions(record: Rank) -> list[Contribution] | None:
    """Return the largest parts of the choice's estimate, with the names that were not scrubbed."""
    if record.parts is None:
        return None
    context, features = record.sent
    around = list(flatten(context))
    names = [f"id={record.action.id}", *flatten(features[record.choice] or ())]
    found = []
    for kind, action, context, value in np.frombuffer(record.parts, dtype=PART).tolist():
        told = [around[context]] if 0 <= context < len(around) else []
        told += [names[action]] if 0 <= action < len(names) else []
        found.append(Contribution(NAMES[kind], told, value))
    return found
