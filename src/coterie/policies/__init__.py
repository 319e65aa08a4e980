"""The policies: CAB and others, one algorithm per file. `discover` finds them; no list names them all."""

import os
import pkgutil
from importlib import import_module
from typing import Any

from coterie.errors import FileError
from coterie.models.files import read_policy_name
from coterie.policies.base.batch import Batch, Outcome
from coterie.policies.base.decision import Basis, Decision
from coterie.policies.base.policy import Policy
from coterie.policies.cab import CAB
from coterie.policies.clustering.bass import BASS
from coterie.policies.clustering.club import CLUB
from coterie.policies.clustering.cofiba import COFIBA
from coterie.policies.clustering.dccb import DCCB
from coterie.policies.clustering.dynucb import DynUCB
from coterie.policies.clustering.locb import LOCB
from coterie.policies.clustering.m_cnb import MCNB
from coterie.policies.clustering.sclub import SCLUB
from coterie.policies.hier_ts import HierTS
from coterie.policies.hierarchical import Hierarchical
from coterie.policies.linucb import LinUCB
from coterie.policies.random import Random
from coterie.policies.social.colin import CoLin
from coterie.policies.social.gob_lin import GOBLin
from coterie.policies.sparse_cab import SparseCAB
from coterie.policies.vw import VW

__all__ = [
    "BASS", "CAB", "CLUB", "COFIBA", "DCCB", "LOCB", "MCNB", "POLICIES", "SCLUB", "VW", "Basis", "Batch",
    "CoLin", "Decision", "DynUCB", "GOBLin", "HierTS", "Hierarchical", "LinUCB", "Outcome", "Policy", "Random",
    "SparseCAB", "load",
]  # fmt: skip

# The order of lists: the recommended ones, the paper's own, its competitors; any others; then the baselines.
FIRST = (
    "hierarchical", "cab", "sparse-cab", "linucb", "club", "dynucb", "sclub", "cofiba",
    "gob-lin", "colin", "dccb", "locb", "bass", "m-cnb", "hier-ts",
)  # fmt: skip
LAST = ("vw", "random")
POLICIES: dict[str, type[Policy]] = {}  # every policy, by its name


def discover() -> None:
    """Put every policy that a file of this folder, or of one in it, defines into `POLICIES`."""
    modules = [import_module(found.name) for found in pkgutil.walk_packages(__path__, f"{__name__}.")]
    kinds = [
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Policy)
        if kind.__module__ == module.__name__ and "name" in vars(kind)
    ]
    order = {name: place for place, name in enumerate((*FIRST, *LAST))}
    kinds.sort(key=lambda kind: (kind.name in LAST, order.get(kind.name, len(order)), kind.name))
    POLICIES.clear()
    POLICIES.update({kind.name: kind for kind in kinds})
    globals().update({kind.__name__: kind for kind in kinds})


discover()


def load(path: str | os.PathLike[str], **functions: Any) -> Policy:
    """Read the saved policy at `path`, of any kind; `functions` are the parameters that a file cannot hold.

    Returns a policy that continues exactly where the saved one stopped. Raises FileError if there is no such
    file or it is damaged, ParameterError if `functions` is not what it needs. Loading a file never runs code.

    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "policy.safetensors")
    >>> CLUB(one_hot=True, alpha=0.2).save(path)
    >>> load(path)
    CLUB(one_hot=True, alpha=0.2), 0 users, 0 payoffs learned
    """
    name = read_policy_name(path)
    if name not in POLICIES:
        raise FileError(f"{path} holds a policy named {name!r}, which this coterie does not have")
    return POLICIES[name].load(path, **functions)
