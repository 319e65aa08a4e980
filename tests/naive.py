"""A slow, obvious twin for each fast routine, one file a policy in `twins/`."""

from tests.twins.cab import CachedCAB, NaiveCAB

__all__ = ["CachedCAB", "NaiveCAB"]
