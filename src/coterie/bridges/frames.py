"""Results and logs as tables, for pandas, polars or anything that reads Arrow.

In the other direction no bridge is needed: `open_log`, `open_interactions` and `Policy.fit` read any Arrow table.
"""

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import polars as pl

from coterie.data.logs.decision_table import as_frame
from coterie.data.logs.interactions import InteractionLog
from coterie.data.logs.logged import Logged
from coterie.errors import MissingExtraError, ParameterError
from coterie.evaluation import Evaluation
from coterie.experiments import Comparison, Replay, read_trace
from coterie.experiments.study.reproduce import runs_table
from coterie.policies import Decision

FORMATS = ("polars", "pandas", "arrow")


def frame(result: Any, to: str = "polars", *, curves: bool = False) -> Any:
    """Return a result or a log as a table; `to` is "polars", "pandas" or "arrow".

    result                     rows
    what `compare` returns     one per policy and run; with `curves=True` one per policy and moment
    what `reproduce` returns   the same
    what `evaluate` returns    one per policy and method, with its interval
    what `replay` returns      one per record
    a `Decision`               one per candidate
    what `open_log` returns    one per record: user, item or features, payoff
    `open_interactions`'       one per decision, as `open_interactions` reads it again
    the path of a trace        one per round

    >>> from coterie import CAB
    >>> frame(CAB(one_hot=True).explain("ann", ["jazz", "news"]))["item"].to_list()
    ['jazz', 'news']
    """
    if to not in FORMATS:
        raise ParameterError(f"to is {to!r}, expected one of: {', '.join(FORMATS)}")
    if to == "pandas" and find_spec("pandas") is None:
        raise MissingExtraError("a pandas frame needs pandas: pip install pandas")
    result = getattr(result, "comparison", result)  # `reproduce` returns one with a comparison
    if curves:
        if not isinstance(result, Comparison):
            raise ParameterError(f"a {type(result).__name__} has no curves; what compare returns has")
        made = _curves(result)
    else:
        made = _rows(result)
    return made.to_pandas() if to == "pandas" else made.to_arrow() if to == "arrow" else made


def _rows(result: Any) -> pl.DataFrame:
    if isinstance(result, str | os.PathLike):
        return read_trace(result)
    for kind, make in MAKERS.items():
        if isinstance(result, kind):
            return make(result)
    names, given = ", ".join(kind.__name__ for kind in MAKERS), type(result).__name__
    raise ParameterError(f"result is a {given}, expected one of: {names}, or the path of a trace")


def _curves(comparison: Comparison) -> pl.DataFrame:
    parts = [
        pl.DataFrame(result.curve._asdict()).select(pl.lit(result.spec.text).alias("policy"), pl.all())
        for result in comparison.results
    ]
    return pl.concat(parts)


def _evaluation(found: Evaluation) -> pl.DataFrame:
    rows = [
        {"policy": result.name, "method": method, **value._asdict()}
        for result in found.results
        for method, value in result.estimates.items()
    ]
    return pl.DataFrame(rows)


def _replay(found: Replay) -> pl.DataFrame:
    return pl.DataFrame({"choice": found.choice, "kept": found.kept, "payoff": found.payoffs})


def _log(log: Logged) -> pl.DataFrame:
    users, places, payoffs = log.every_record()
    shown = log.items if isinstance(log.items, np.ndarray) else pl.Series(log.items)
    name = "features" if isinstance(log.items, np.ndarray) else "item"
    return pl.DataFrame({"user": users.tolist(), name: shown[places], "payoff": payoffs})


MAKERS: dict[type, Callable[[Any], pl.DataFrame]] = {
    Comparison: runs_table,
    Evaluation: _evaluation,
    Replay: _replay,
    Decision: lambda decision: pl.DataFrame(decision.rows()),
    Logged: _log,
    InteractionLog: as_frame,
}
