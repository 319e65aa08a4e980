"""Bridges to other packages: obp, Gymnasium, pandas, polars, Arrow and MLflow.

Each name is imported when it is first asked for, and says what to install where its package is missing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.bridges.frames import frame
    from coterie.bridges.functions import FromFunction
    from coterie.bridges.gym import environment
    from coterie.bridges.mlflow import log_to_mlflow
    from coterie.bridges.obp import action_dist, to_obp

__all__ = ["FromFunction", "action_dist", "environment", "frame", "log_to_mlflow", "to_obp"]

HOMES = {
    "FromFunction": "functions",
    "action_dist": "obp",
    "environment": "gym",
    "frame": "frames",
    "log_to_mlflow": "mlflow",
    "to_obp": "obp",
}


def __getattr__(name: str) -> Any:
    """Import a bridge when it is first asked for: none needs the packages of another."""
    if name not in HOMES:
        raise AttributeError(f"module 'coterie.bridges' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"coterie.bridges.{HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
