"""A slow, obvious twin for each fast routine, one file per policy in `twins/`."""

from tests.twins.cab import CachedCAB, NaiveCAB
from tests.twins.club import NaiveCLUB
from tests.twins.cofiba import NaiveCOFIBA
from tests.twins.colin import NaiveCoLin
from tests.twins.dccb import NaiveDCCB
from tests.twins.dynucb import NaiveDynUCB
from tests.twins.gob_lin import NaiveGOBLin
from tests.twins.hierarchical import NaiveHierarchical
from tests.twins.linucb import NaiveLinUCB
from tests.twins.one_hot import DirectCAB
from tests.twins.recovery import exhaustive_search, objective, two_stage
from tests.twins.sclub import NaiveSCLUB
from tests.twins.sparse_cab import NaiveSparseCAB

__all__ = [
    "CachedCAB",
    "DirectCAB",
    "NaiveCAB",
    "NaiveCLUB",
    "NaiveCOFIBA",
    "NaiveCoLin",
    "NaiveDCCB",
    "NaiveDynUCB",
    "NaiveGOBLin",
    "NaiveHierarchical",
    "NaiveLinUCB",
    "NaiveSCLUB",
    "NaiveSparseCAB",
    "exhaustive_search",
    "objective",
    "two_stage",
]
