"""A slow, obvious twin for each fast routine, one file a policy in `twins/`."""

from tests.twins.club import NaiveCLUB
from tests.twins.dynucb import NaiveDynUCB
from tests.twins.linucb import NaiveLinUCB
from tests.twins.sclub import NaiveSCLUB

__all__ = ["NaiveCLUB", "NaiveDynUCB", "NaiveLinUCB", "NaiveSCLUB"]
