"""Which part of an evaluation's time series a request asks for, and in which intervals.

Only the last version of the API has these parameters. It requires `startTime` and `endTime`; here they are optional.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from coterie.service.evaluations.jobs import EXPANDING, ROLLING
from coterie.service.http.compatible import Refusal
from coterie.service.personalizer.bodies import read_time

INTERVALS = {EXPANDING: "Expanding", **dict.fromkeys(ROLLING, "Rolling")}


class Aggregation(NamedTuple):
    """The requested part of a time series; times are in milliseconds, None is the evaluation's own."""

    start: int | None = None
    end: int | None = None
    minutes: int = EXPANDING

    def overlaps(self, end: float, length: float) -> bool:
        """Return whether the interval with this end and length has a part in the requested time."""
        return (self.start is None or end > self.start) and (self.end is None or end - length < self.end)


WHOLE = Aggregation()


def read_aggregation(query: Mapping[str, Any]) -> Aggregation:
    """Return what the parameters of a request ask for; raises Refusal with the name of a wrong one."""
    start, end = (
        read_time(query[name], name, "BadRequest") if name in query else None
        for name in ("startTime", "endTime")
    )
    if start is not None and end is not None and end < start:
        message = f"endTime is {query['endTime']!r}, which is before startTime, {query['startTime']!r}"
        raise Refusal(400, "BadRequest", message, "endTime")
    window = query.get("window")
    if window is not None and window not in INTERVALS.values():
        message = f"window is {window[:80]!r}, expected 'Expanding' or 'Rolling'"
        raise Refusal(400, "BadRequest", message, "window")
    text = query.get("intervalInMinutes", ROLLING[0] if window == "Rolling" else EXPANDING)
    minutes = next((known for known in INTERVALS if str(known) == str(text)), None)
    if minutes is None:
        message = f"intervalInMinutes is {text[:80]!r}, expected 5, 60, 360, 720 or 1440"
        raise Refusal(400, "BadRequest", message, "intervalInMinutes")
    if window not in (None, INTERVALS[minutes]):
        message = f"window is {window!r}, but with intervalInMinutes {minutes} it is {INTERVALS[minutes]!r}"
        raise Refusal(400, "BadRequest", message, "window")
    return Aggregation(start, end, minutes)
