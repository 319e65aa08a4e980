"""A slow, obvious twin for each fast routine, one file a policy in `twins/`."""

from tests.twins.dynucb import NaiveDynUCB
from tests.twins.linucb import NaiveLinUCB

__all__ = ["NaiveDynUCB", "NaiveLinUCB"]
