"""Bridges to other packages: obp, Gymnasium, pandas, polars, Arrow and MLflow.

Each name is imported at its first use; if its package is missing, the error says what to install.
"""

from typing import TYPE_CHECKING

from coterie.lazy import lazy_names

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


__getattr__, __dir__ = lazy_names("coterie.bridges", HOMES)
