"""Decisions as a table, one row per decision, in time order: from pandas, polars or Arrow, and back.

column         what it holds
user           the user of the decision; without it, all rows are of one user
action         the id of the shown action
probability    its probability
reward         its reward, in [-1, 1]
actions        the ids of all possible actions, as a list; without it, all ids of the table
probabilities  the probability of each of them, as a list
context        named numbers and texts: a struct, or a list of keys and values (how polars shows Arrow's maps)
context_…      one number or text each, instead of `context`
features       a list with, for each of `actions`, what `context` may hold
"""

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from coterie.arrays import JsonObject
from coterie.data.logs.interactions import (
    DECISIONS,
    SHARED,
    Interaction,
    InteractionLog,
    Named,
    check_interaction,
)
from coterie.errors import FileError

PREFIX = "context_"
PAIRS = pl.List(pl.Struct({"key": pl.String, "value": pl.Float64}))


def read_decisions(path: Path) -> InteractionLog:
    """Read a Parquet file of decisions."""
    return from_table(pl.read_parquet(path), path.name)


def from_table(table: Any, name: str = "table") -> InteractionLog:
    """Return the interactions of a table with the Arrow interface."""
    try:
        frame = pl.DataFrame(table)
    except (TypeError, ValueError, pl.exceptions.PolarsError) as error:
        raise FileError(f"{name} cannot be read as a table: {error}") from error
    missing = [column for column in DECISIONS if column not in frame.columns]
    if missing:
        raise FileError(
            f"{name} has no column {missing[0]!r}; decisions have {', '.join(DECISIONS)}, this table has "
            f"{', '.join(frame.columns[:12])}"
        )
    if not len(frame):
        raise FileError(f"{name} holds no decisions")
    for column in ("probability", "reward"):
        if not (frame[column].dtype.is_numeric() or frame[column].dtype == pl.Boolean):
            raise FileError(f"{name}: column {column!r} holds {frame[column].dtype}, expected numbers")
    everything = tuple(str(action) for action in frame["action"].unique(maintain_order=True).to_list())
    found = []
    for t, row in enumerate(frame.iter_rows(named=True)):
        where = f"row {t} of {name}"
        found.append(check_interaction(where, _interaction(where, row, everything)))
    return InteractionLog(name, found)


def as_frame(log: InteractionLog) -> pl.DataFrame:
    """Return a log as a table of decisions, which `from_table` reads again."""
    numbered = all(type(one.user) is int for one in log.interactions)
    rows = [
        {
            "user": one.user if numbered else str(one.user),
            "action": one.actions[one.chosen],
            "probability": one.probability,
            "reward": one.reward,
            "actions": list(one.actions),
            "probabilities": None if one.chances is None else one.chances.tolist(),
            "context": _pairs(one.context),
            "features": None if one.features is None else [_pairs(own) for own in one.features],
            "at": one.at,
        }
        for one in log.interactions
    ]
    schema = {
        "user": pl.Int64 if numbered else pl.String,
        "action": pl.String,
        "probability": pl.Float64,
        "reward": pl.Float64,
        "actions": pl.List(pl.String),
        "probabilities": pl.List(pl.Float64),
        "context": PAIRS,
        "features": pl.List(PAIRS),
        "at": pl.Float64,
    }
    return pl.DataFrame(rows, schema=schema)


def _interaction(where: str, row: JsonObject, everything: tuple[str, ...]) -> Interaction:
    for column in ("user", *DECISIONS):
        if column in row and row[column] is None:
            raise FileError(f"{where}: {column} is missing; every decision has one")
    listed = row.get("actions")
    actions = everything if listed is None else tuple(str(action) for action in listed)
    shown = str(row["action"])
    if shown not in actions:
        raise FileError(f"{where} shows {shown!r}, which is not among its actions: {', '.join(actions[:12])}")
    chances, features = row.get("probabilities"), row.get("features")
    for column, values in (("probabilities", chances), ("features", features)):
        if values is not None and len(values) != len(actions):
            raise FileError(
                f"{where} has {len(actions)} actions and {len(values)} {column}, expected as many"
            )
    context = dict(_named(where, row.get("context")))
    for column, value in row.items():
        if column.startswith(PREFIX):
            context |= _named(where, {column.removeprefix(PREFIX): value})
    return Interaction(
        user=_user(row.get("user", SHARED)),
        actions=actions,
        features=None if features is None else tuple(_named(where, own) for own in features),
        context=context,
        chosen=actions.index(shown),
        probability=float(row["probability"]),
        chances=None if chances is None else np.array(chances, dtype=np.float64),
        reward=float(row["reward"]),
        at=row.get("at"),
    )


def _user(user: Hashable) -> Hashable:
    return user if isinstance(user, str | int) else str(user)


def _named(where: str, given: Any) -> Named:
    """Return a struct, or a list of keys and values, as named numbers; a text becomes a name with the value 1."""
    if given is None:
        return {}
    if isinstance(given, list):
        given = {pair["key"]: pair["value"] for pair in given}
    if not isinstance(given, Mapping):
        raise FileError(f"{where}: {given!r} is not named: expected a struct, or a list of keys and values")
    found: dict[str, float] = {}
    for name, value in given.items():
        if isinstance(value, str):
            found[f"{name}={value}"] = 1.0
        elif isinstance(value, int | float):
            if value:
                found[name] = float(value)
        elif value is not None:
            raise FileError(f"{where}: {name} is {value!r}, expected a number or a text")
    return found


def _pairs(named: Named) -> list[JsonObject]:
    return [{"key": name, "value": value} for name, value in named.items()]
