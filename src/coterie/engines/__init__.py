"""Engines: where the users' models live and where work is done, when one process is not enough."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.engines.cluster import connect

HOMES = {"connect": "cluster"}

__all__ = ["connect"]


def __getattr__(name: str) -> Any:
    """Import an engine when it is first asked for, so that what it needs may be missing until then."""
    if name not in HOMES:
        raise AttributeError(f"module 'coterie.engines' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"coterie.engines.{HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
