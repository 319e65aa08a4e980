"""A slow, obvious twin for each fast routine, one file a policy in `twins/`."""

from tests.twins.cab import CachedCAB, NaiveCAB
from tests.twins.recovery import exhaustive_search, objective, two_stage

__all__ = ["CachedCAB", "NaiveCAB", "exhaustive_search", "objective", "two_stage"]
