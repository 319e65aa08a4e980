"""Context-dependent clustering of bandits: users who react alike to an item teach each other.

>>> from coterie import CAB
>>> policy = CAB(one_hot=True, alpha=0.5)
>>> policy.choose("ann", ["jazz", "news"])
0
>>> policy.learn("ann", "jazz", 1.0)
1
>>> policy.choose("bob", ["news", "jazz"])
1
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from coterie.errors import CoterieError

if TYPE_CHECKING:
    from coterie.models.recovery import sparse_recovery
    from coterie.policies import (
        CAB,
        CLUB,
        COFIBA,
        DCCB,
        SCLUB,
        Action,
        CoLin,
        DynUCB,
        GOBLin,
        LinUCB,
        Policy,
        Random,
        SparseCAB,
        SparseHierarchical,
        load,
    )

__version__ = "0.1.0"

__all__ = [
    "CAB",
    "CLUB",
    "COFIBA",
    "DCCB",
    "SCLUB",
    "Action",
    "CoLin",
    "CoterieError",
    "DynUCB",
    "GOBLin",
    "LinUCB",
    "Policy",
    "Random",
    "SparseCAB",
    "SparseHierarchical",
    "__version__",
    "load",
    "sparse_recovery",
]


def __getattr__(name: str) -> Any:
    """Import a policy when it is first asked for, so that `import coterie` does not wait for the compiler."""
    if name not in __all__:
        raise AttributeError(f"module 'coterie' has no attribute {name!r}")
    home = "coterie.models.recovery" if name == "sparse_recovery" else "coterie.policies"
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
