"""Bandit feedback of the Open Bandit Pipeline (`obp`): a dict of arrays, or the same arrays in an .npz file.

Required are action, reward and pscore: the shown action's number, its reward and its propensity. Optional are
context, action_context, position, n_actions and pi_b. Saito et al., arXiv:2008.07146.

obp has neither users nor names. `coterie.bridges.to_obp` adds them, and they are read here: user (one per round),
action_names, context_names and action_context_names.
"""

import zipfile
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.arrays import Floats
from coterie.data.logs.interactions import SHARED, Interaction, InteractionLog, check_interaction
from coterie.errors import FileError

NEEDED = ("action", "reward", "pscore")


def read_npz(path: Path) -> InteractionLog:
    """Read bandit feedback from an .npz file."""
    try:
        with np.load(path, allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise FileError(f"{path} cannot be read as arrays: {error}") from error
    return from_feedback(arrays, path.name)


def from_feedback(feedback: Mapping[str, Any], name: str) -> InteractionLog:
    """Return the interactions of bandit feedback."""
    missing = [key for key in NEEDED if feedback.get(key) is None]
    if missing:
        raise FileError(f"{name} has no {missing[0]!r}; bandit feedback has {', '.join(NEEDED)}")
    action = np.asarray(feedback["action"])
    n = len(action)
    if action.ndim != 1 or action.dtype.kind not in "iu" or not n or action.min() < 0:
        raise FileError(
            f"{name}: action is {action.dtype} {action.shape}, expected numbers from 0 on, one per round"
        )
    rewards, scores = (_numbers(name, feedback, key, (n,)) for key in ("reward", "pscore"))
    assert rewards is not None
    assert scores is not None
    counted = feedback.get("n_actions")
    n_actions = int(np.asarray(counted).item()) if counted is not None else int(action.max()) + 1
    position = feedback.get("position")
    places = np.zeros(n, dtype=np.int64) if position is None else np.asarray(position).astype(np.int64)
    context = _numbers(name, feedback, "context", (n, None))
    known = _numbers(name, feedback, "action_context", (n_actions, None))
    chances = _numbers(name, feedback, "pi_b", (n, n_actions, None))
    ids = _names(name, feedback, "action_names", n_actions, "")
    features = None
    if known is not None:
        called = _names(name, feedback, "action_context_names", known.shape[1], "a")
        features = tuple(_named(called, row) for row in known)
    around_names = () if context is None else _names(name, feedback, "context_names", context.shape[1], "x")
    users = _users(name, feedback, n)
    several = len(np.unique(places)) > 1
    found = []
    for t in range(n):
        around = {} if context is None else _named(around_names, context[t])
        if several:
            around[f"position={places[t]}"] = 1.0
        one = Interaction(
            user=users[t],
            actions=ids,
            features=features,
            context=around,
            chosen=int(action[t]),
            probability=float(scores[t]),
            chances=None if chances is None else chances[t, :, places[t]],
            reward=float(rewards[t]),
        )
        found.append(check_interaction(f"round {t} of {name}", one))
    return InteractionLog(name, found)


def _named(names: Sequence[str], row: Floats) -> dict[str, float]:
    return {name: value for name, value in zip(names, row.tolist(), strict=True) if value}


def _names(name: str, feedback: Mapping[str, Any], key: str, n: int, letter: str) -> tuple[str, ...]:
    """Return the names in the feedback, or else a letter and numbers."""
    if feedback.get(key) is None:
        return tuple(f"{letter}{k}" for k in range(n))
    given = tuple(str(one) for one in feedback[key])
    if len(given) != n:
        raise FileError(f"{name}: {key} has {len(given)} names, expected {n}")
    return given


def _users(name: str, feedback: Mapping[str, Any], n: int) -> Sequence[Hashable]:
    """Return the user of each round; one user for all if the feedback has none."""
    if feedback.get("user") is None:
        return [SHARED] * n
    given: list[Hashable] = np.asarray(feedback["user"]).tolist()
    if len(given) != n:
        raise FileError(f"{name}: user has {len(given)} ids, expected {n}: one per round")
    return given


def _numbers(
    name: str, feedback: Mapping[str, Any], key: str, shape: tuple[int | None, ...]
) -> Floats | None:
    if feedback.get(key) is None:
        return None
    values = np.asarray(feedback[key])
    fits = values.ndim == len(shape) and all(b in (None, a) for a, b in zip(values.shape, shape, strict=True))
    if not fits or values.dtype.kind not in "iufb" or not np.isfinite(values).all():
        expected = tuple("any" if size is None else size for size in shape)
        raise FileError(f"{name}: {key} is {values.dtype} {values.shape}, expected finite numbers {expected}")
    return values.astype(np.float64)
