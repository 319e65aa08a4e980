"""Experiments: play policies on worlds and logs, keep traces, draw figures, write reports."""

from importlib.util import find_spec

from coterie.errors import MissingExtraError

_missing = [name for name in ("matplotlib", "polars", "pyarrow", "rich") if find_spec(name) is None]
if _missing:
    raise MissingExtraError(
        f"coterie.experiments needs {', '.join(_missing)}: pip install 'coterie[experiments]'"
    )

from coterie.experiments.compare import Comparison, Plan, compare  # noqa: E402
from coterie.experiments.play import Row, play  # noqa: E402
from coterie.experiments.record import record  # noqa: E402
from coterie.experiments.replay import Replay, replay  # noqa: E402
from coterie.experiments.report import write_report  # noqa: E402
from coterie.experiments.runs import Run  # noqa: E402
from coterie.experiments.specs import Spec, parse_spec, parse_specs  # noqa: E402
from coterie.experiments.trace import read_header, read_trace  # noqa: E402
from coterie.experiments.worlds import open_world  # noqa: E402

__all__ = [
    "Comparison",
    "Plan",
    "Replay",
    "Row",
    "Run",
    "Spec",
    "compare",
    "open_world",
    "parse_spec",
    "parse_specs",
    "play",
    "read_header",
    "read_trace",
    "record",
    "replay",
    "write_report",
]
