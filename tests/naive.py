"""A slow, obvious twin for each fast routine, one file a policy in `twins/`."""

from tests.twins.cab import CachedCAB, NaiveCAB
from tests.twins.recovery import exhaustive_search, objective, two_stage
from tests.twins.sparse_cab import NaiveSparseCAB

__all__ = ["CachedCAB", "NaiveCAB", "NaiveSparseCAB", "exhaustive_search", "objective", "two_stage"]
