"""Experiments: play policies on worlds and logs, write traces, draw figures, write reports."""

from importlib.util import find_spec

from coterie.errors import MissingExtraError

_missing = [name for name in ("matplotlib", "polars", "pyarrow", "rich") if find_spec(name) is None]
if _missing:
    raise MissingExtraError(
        f"coterie.experiments needs {', '.join(_missing)}: pip install 'coterie[experiments]'"
    )

from coterie.experiments.report.comparison import write_report  # noqa: E402
from coterie.experiments.run.play import Row, play  # noqa: E402
from coterie.experiments.run.record import record  # noqa: E402
from coterie.experiments.run.replay import Replay, replay  # noqa: E402
from coterie.experiments.run.runs import Run  # noqa: E402
from coterie.experiments.run.specs import Spec, parse_spec, parse_specs  # noqa: E402
from coterie.experiments.run.trace import read_header, read_trace  # noqa: E402
from coterie.experiments.run.worlds import open_world  # noqa: E402
from coterie.experiments.study.compare import Comparison, Plan, compare  # noqa: E402

__all__ = [
    "Comparison", "Plan", "Replay", "Row", "Run", "Spec", "compare", "open_world", "parse_spec",
    "parse_specs", "play", "read_header", "read_trace", "record", "replay", "write_report",
]  # fmt: skip
