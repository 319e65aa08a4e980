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

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from coterie.errors import (
    ContextError,
    CoterieError,
    FileError,
    MissingExtraError,
    NoAnswerError,
    NumberError,
    ParameterError,
    PayoffError,
    ServiceError,
    UnavailableError,
    UserError,
)  # fmt: skip

if TYPE_CHECKING:
    from coterie.client import AsyncClient, Client, Ranked
    from coterie.models.actions import Action
    from coterie.models.candidates import Candidates
    from coterie.models.users.recovery import sparse_recovery
    from coterie.policies import (
        BASS,
        CAB,
        CLUB,
        COFIBA,
        DCCB,
        LOCB,
        MCNB,
        SCLUB,
        VW,
        Batch,
        CoLin,
        Decision,
        DynUCB,
        GOBLin,
        Hierarchical,
        HierTS,
        LinUCB,
        Policy,
        Random,
        SparseCAB,
        load,
    )  # fmt: skip

    # Not imported, not even for types: the rooms below must not come to know those above through this one.
    evaluate: Callable[..., Any]
    open_interactions: Callable[..., Any]
    open_log: Callable[..., Any]
    replay: Callable[..., Any]

__version__ = "0.1.0"

__all__ = [
    "BASS", "CAB", "CLUB", "COFIBA", "DCCB", "LOCB", "MCNB", "SCLUB", "VW", "Action", "AsyncClient", "Batch",
    "Candidates", "Client", "CoLin", "ContextError", "CoterieError", "Decision", "DynUCB", "FileError",
    "GOBLin", "HierTS", "Hierarchical", "LinUCB", "MissingExtraError", "NoAnswerError", "NumberError",
    "ParameterError", "PayoffError", "Policy", "Random", "Ranked", "ServiceError", "SparseCAB",
    "UnavailableError", "UserError", "__version__", "evaluate", "load", "open_interactions", "open_log",
    "replay", "sparse_recovery",
]  # fmt: skip

# Where the names come from that are not policies.
HOMES = {
    "Action": "coterie.models.actions",
    "AsyncClient": "coterie.client",
    "Candidates": "coterie.models.candidates",
    "Client": "coterie.client",
    "Ranked": "coterie.client",
    "evaluate": "coterie.evaluation",
    "open_interactions": "coterie.data.logs.interactions",
    "open_log": "coterie.data.logs.log",
    "replay": "coterie.experiments.run.replay",
    "sparse_recovery": "coterie.models.users.recovery",
}


def __getattr__(name: str) -> Any:
    """Import a policy on first use, so that `import coterie` does not wait for the compiler."""
    if name == "open_log" and find_spec("polars") is None:
        raise MissingExtraError("open_log needs polars: pip install 'coterie[experiments]'")
    known = name in __all__ or name[:1].isupper()  # a policy that is not listed above is a class
    place = HOMES.get(name, "coterie.policies")
    if known and place != "coterie.client" and find_spec("coterie.models") is None:
        raise MissingExtraError(f"coterie-client has no {name}; pip install coterie brings the library")
    home = import_module(place) if known else None
    if not hasattr(home, name):
        raise AttributeError(f"module 'coterie' has no attribute {name!r}")
    value = globals()[name] = getattr(home, name)
    return value


def __dir__() -> list[str]:
    policies = getattr(sys.modules.get("coterie.policies"), "POLICIES", {})
    return sorted({*__all__, *(kind.__name__ for kind in policies.values())})
