"""Why a decision was made, as small as the log keeps it, and back into words."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from coterie.models.features import flatten
from coterie.models.hierarchy.effects import NAMES, EffectPart
from coterie.policies import Decision
from coterie.service.core.records import Rank

# The rows of `Rank.reasons`: of policies with neighbours, and of one model for all.
REASONS = ("estimate", "width", "neighbours", "neighbours_estimate", "neighbours_width")
PARTS = ("estimate", "width", "population", "action", "context", "user")
LARGEST = 8  # parts that are kept of the choice
PART = np.dtype([("kind", "u1"), ("action", "<i2"), ("context", "<i2"), ("value", "<f4")])


class Contribution(Struct, frozen=True, rename="camel"):
    """What one effect added to the estimate of what was chosen."""

    kind: str
    features: list[str]  # by name, the context's first; empty for the population and the user
    value: float


def pack_reasons(decision: Decision) -> bytes:
    """Return one column a candidate, float32."""
    parts = decision.parts
    if parts is None or not set(PARTS[2:]) <= parts.keys():
        rows: Sequence[Any] = (
            decision.estimate,
            decision.width,
            decision.members,
            decision.near_estimate,
            decision.near_width,
        )
    else:
        rows = (decision.estimate, decision.width, *map(parts.__getitem__, PARTS[2:]))
    found: NDArray[np.float32] = np.array(rows, dtype=np.float32)
    return found.tobytes()


def rows_of(record: Rank) -> list[dict[str, float]] | None:
    """Return the reasons of each action that was not excluded, as they were."""
    if record.reasons is None:
        return None
    table = np.frombuffer(record.reasons, dtype=np.float32)
    table = table.reshape(-1, len(record.actions) - len(record.excluded))
    names = REASONS if len(table) == len(REASONS) else PARTS
    return [dict(zip(names, map(float, column), strict=True)) for column in table.T]


def pack_parts(parts: Sequence[EffectPart]) -> bytes:
    """Return parts as bytes; names are left to the features in the same record."""
    rows = [(NAMES.index(part.kind), part.action, part.context, part.value) for part in parts]
    return np.array(rows, dtype=PART).tobytes()


def contributions(record: Rank) -> list[Contribution] | None:
    """Return the largest parts of the choice's estimate by name; names that were scrubbed are left out."""
    if record.parts is None:
        return None
    sent = (
        {"context": [], "actions": None} if record.features is None else msgspec.json.decode(record.features)
    )
    around = list(flatten(sent["context"]))
    own = sent["actions"][record.choice] if sent["actions"] else None
    names = [f"id={record.actions[record.choice]}", *flatten(own or ())]
    found = []
    for row in np.frombuffer(record.parts, dtype=PART).tolist():
        kind, action, context, value = row
        told = [around[context]] if 0 <= context < len(around) else []
        told += [names[action]] if 0 <= action < len(names) else []
        found.append(Contribution(NAMES[kind], told, value))
    return found
