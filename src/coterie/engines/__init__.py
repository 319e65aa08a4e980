"""Engines keep users' models outside this process: in shards on several machines, or on a GPU.

>>> from coterie import CAB
>>> from coterie.engines import Local
>>> policy = CAB(one_hot=True, engine=Local(shards=4))
>>> policy.choose("ada", ["news", "music"])
0
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.engines.cluster import connect
    from coterie.engines.cuda import Cuda
    from coterie.engines.local import Local
    from coterie.engines.ray import Ray

HOMES = {"Cuda": "cuda", "Local": "local", "Ray": "ray", "connect": "cluster"}

__all__ = ["Cuda", "Local", "Ray", "connect"]


def __getattr__(name: str) -> Any:
    """Import an engine on first use, so that its packages may be missing until then."""
    if name not in HOMES:
        raise AttributeError(f"module 'coterie.engines' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"coterie.engines.{HOMES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
