"""Whether two logs tell the same."""

from coterie.data.logs.interactions import InteractionLog


def alike(one: InteractionLog, other: InteractionLog) -> bool:
    """Compare all but the name and the notes."""
    return _plain(one) == _plain(other)


def _plain(log: InteractionLog) -> list[object]:
    return [
        one._replace(chances=None if one.chances is None else tuple(one.chances.tolist()))  # type: ignore[arg-type]
        for one in log.interactions
    ]
