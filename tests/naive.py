"""A slow, obvious twin for each fast routine, one file a policy in `twins/`."""

from tests.twins.cab import CachedCAB, NaiveCAB
from tests.twins.gob_lin import NaiveGOBLin

__all__ = ["CachedCAB", "NaiveCAB", "NaiveGOBLin"]
