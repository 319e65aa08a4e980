"""A slow, obvious twin for each fast routine, one file a policy in `twins/`."""

from tests.twins.cab import CachedCAB, NaiveCAB
from tests.twins.one_hot import DirectCAB

__all__ = ["CachedCAB", "DirectCAB", "NaiveCAB"]
