"""Durations as ISO 8601 writes them: `PT10M`, `P7D`, `P1DT12H`."""

import math
import re

_PATTERN = re.compile(
    r"P(?:(\d+(?:\.\d+)?)W)?(?:(\d+(?:\.\d+)?)D)?(?:T(?:(\d+(?:\.\d+)?)H)?(?:(\d+(?:\.\d+)?)M)?(?:(\d+(?:\.\d+)?)S)?)?"
)
_UNITS = (604_800.0, 86_400.0, 3_600.0, 60.0, 1.0)


def parse_duration(text: str) -> float:
    """Return the seconds; months and years have no fixed length and are refused.

    >>> parse_duration("PT10M"), parse_duration("P1DT0.5S")
    (600.0, 86400.5)
    """
    found = _PATTERN.fullmatch(text) if len(text) <= 64 else None
    if found is None or not any(found.groups()) or text.endswith("T"):
        raise ValueError(f"{text[:64]!r} is not a duration such as 'PT10M'")
    return sum(float(part) * unit for part, unit in zip(found.groups(), _UNITS, strict=True) if part)


def format_duration(seconds: float) -> str:
    """Return seconds as a duration, in as few parts as possible.

    >>> format_duration(600), format_duration(86400), format_duration(90.5)
    ('PT10M', 'P1D', 'PT1M30.5S')
    """
    rest, days = math.fmod(seconds, 86_400), int(seconds // 86_400)
    hours, rest = int(rest // 3_600), math.fmod(rest, 3_600)
    minutes, rest = int(rest // 60), math.fmod(rest, 60)
    time = (f"{hours}H" if hours else "") + (f"{minutes}M" if minutes else "")
    time += f"{round(rest, 6):g}S" if rest else ""
    if not time and not days:
        return "PT0S"
    return f"P{f'{days}D' if days else ''}{f'T{time}' if time else ''}"
