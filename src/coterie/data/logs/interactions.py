"""Interactions: a user, the actions offered, the shown action with its propensity, and its reward.

Off-policy evaluation needs such a log, because it contains the propensity of the shown action.
"""

import math
import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from coterie.arrays import Floats
from coterie.data.files import need
from coterie.errors import FileError, ParameterError

SQLITE = b"SQLite format 3\0"
SHARED = "(shared)"  # the user of interactions without a user
SLOTS = "{:,} decisions are slots of a larger one; each is evaluated by itself, beside what the other slots showed."
DECISIONS = ("action", "probability", "reward")  # the columns that make a table one of decisions
ROUNDING = 1e-6  # tolerance for probabilities, which are rounded in files

Named = Mapping[str, float]  # features: names to numbers


class Interaction(NamedTuple):
    """One decision and its reward. Actions that could not be shown are not listed."""

    user: Hashable
    actions: tuple[str, ...]  # ids
    features: tuple[Named, ...] | None  # of each action; None if actions are known by id alone
    context: Named
    chosen: int  # the position of the shown action
    probability: float  # of the shown action
    chances: Floats | None  # (actions,) each one's probability; None if only that of the shown one is logged
    reward: float
    baseline: int = 0  # the position of the action the application would have shown
    at: float | None = None  # seconds since 1970


@final
@dataclass(frozen=True)
class InteractionLog:
    """Interactions in time order."""

    name: str
    interactions: Sequence[Interaction]
    notes: tuple[str, ...] = ()  # remarks for readers of results

    @property
    def has_features(self) -> bool:
        """Whether any action has features."""
        return any(one.features is not None for one in self.interactions)

    @property
    def has_chances(self) -> bool:
        """Whether the log has the probabilities of all actions."""
        return all(one.chances is not None for one in self.interactions)


def open_interactions(log: Any, *, user_path: str = "user.id") -> InteractionLog:
    """Read a log of interactions.

    `log` is a path: a service's SQLite store, its Parquet or dsjson export, a dsjson file of Vowpal Wabbit or
    Personalizer (`user_path` is the path of the user's id in its context), a Parquet file of decisions, or an .npz
    file with the arrays of `obp` bandit feedback; or that feedback itself, a mapping with action, reward and pscore;
    or a table of decisions from pandas, polars or Arrow (`decision_table.py` lists the columns); or the URL of a
    service's PostgreSQL store. A store is only read, even while a service writes to it.

    Raises FileError, which names the record or line and the fix, if the log cannot be read.

    >>> log = open_interactions({"action": [0, 1], "reward": [1, 0], "pscore": [0.5, 0.5], "n_actions": 2})
    >>> len(log.interactions), log.interactions[0].actions
    (2, ('0', '1'))
    """
    if isinstance(log, InteractionLog):
        return log
    if isinstance(log, Mapping):
        from coterie.data.logs.bandit_feedback import from_feedback

        return from_feedback(log, "bandit feedback")
    if hasattr(log, "__arrow_c_stream__"):
        return _tables("a table of decisions").from_table(log)  # type: ignore[no-any-return]
    if not isinstance(log, str | os.PathLike):
        raise ParameterError(
            f"log is a {type(log).__name__}, expected a path, a table or an obp bandit feedback"
        )
    if str(log).startswith(("postgresql://", "postgres://")):
        return _service_log().read_database(str(log))  # type: ignore[no-any-return]
    path = Path(str(log).removeprefix("sqlite://"))
    if not path.is_file():
        raise FileError(f"there is no file {path}")
    return _read(path, user_path)


def _tables(what: str) -> Any:
    """Import the reader of tables, which needs polars; a service does not need it."""
    need("polars", what)
    return import_module("coterie.data.logs.decision_table")


def _service_log() -> Any:
    """Import the reader of a service's log, which needs msgspec; other logs do not need it."""
    need("msgspec", "a service's log", "service")
    return import_module("coterie.data.logs.service_log")


ONLY_CHOICES = "; a .csv log has no probabilities, so play policies on it with `coterie compare`"


def _read(path: Path, user_path: str) -> InteractionLog:
    from coterie.data.logs.bandit_feedback import read_npz
    from coterie.data.logs.dsjson import read_dsjson

    kind = path.suffix.lower()
    if kind in (".dsjson", ".json", ".jsonl"):
        return read_dsjson(path, user_path)
    if kind == ".parquet" and set(DECISIONS) <= set(columns_of(path)):
        return _tables("a file of decisions").read_decisions(path)  # type: ignore[no-any-return]
    if kind == ".parquet":
        return _service_log().read_export(path)  # type: ignore[no-any-return]
    if kind == ".npz":
        return read_npz(path)
    if is_store(path):
        return _service_log().read_store(path)  # type: ignore[no-any-return]
    raise FileError(
        f"{path} is none of: a service's store (SQLite), its .parquet export, a .dsjson file, a .parquet file of "
        "decisions, an .npz file with an obp bandit feedback" + ONLY_CHOICES * (kind == ".csv")
    )


def is_store(path: Path) -> bool:
    """Tell whether a file is an SQLite database."""
    with path.open("rb") as file:
        return file.read(len(SQLITE)) == SQLITE


def is_export(path: Path) -> bool:
    """Tell whether a Parquet file is a service's export."""
    schema = _schema(path)
    return schema is not None and b"coterie-log" in (schema.metadata or {})


def columns_of(path: Path) -> list[str]:
    """Return the columns of a Parquet file; empty if it cannot be read."""
    schema = _schema(path)
    return [] if schema is None else list(schema.names)


def _schema(path: Path) -> Any:
    try:
        return need("pyarrow.parquet", "Parquet").read_schema(path)
    except (OSError, ValueError):
        return None


def check_interaction(where: str, one: Interaction) -> Interaction:
    """Return an interaction unchanged, or raise FileError if it is not valid."""
    n = len(one.actions)
    if not 0 <= one.chosen < n:
        raise FileError(f"{where} chose action {one.chosen + 1} of {n}")
    if len(set(one.actions)) < n:
        twice = next(name for name in one.actions if one.actions.count(name) > 1)
        raise FileError(f"{where} lists the action {twice!r} twice; ids must differ")
    if not (math.isfinite(one.reward) and -1 <= one.reward <= 1):
        raise FileError(
            f"{where} has the reward {one.reward!r}, expected a number in [-1, 1]; scale the rewards"
        )
    if not 0 < one.probability <= 1 + ROUNDING:
        raise FileError(
            f"{where} showed its action with probability {one.probability!r}, expected above 0 and at most 1; only "
            "a log that tells how likely its choices were can be evaluated"
        )
    if one.chances is not None:
        chances = one.chances
        if not (np.isfinite(chances).all() and (chances >= 0).all() and abs(chances.sum() - 1) <= 1e-3):
            raise FileError(f"{where} has probabilities that sum to {chances.sum():g}, expected 1")
        if abs(chances[one.chosen] - one.probability) > 1e-3 * one.probability:
            raise FileError(
                f"{where} showed its action with probability {one.probability:g}, but lists it with "
                f"{chances[one.chosen]:g}"
            )
    return one
