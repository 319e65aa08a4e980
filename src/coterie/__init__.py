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

from coterie.errors import CoterieError
from coterie.models.recovery import sparse_recovery
from coterie.policies import CAB, LinUCB, Policy, Random, SparseCAB, load

__version__ = "0.1.0"

__all__ = [
    "CAB",
    "CoterieError",
    "LinUCB",
    "Policy",
    "Random",
    "SparseCAB",
    "__version__",
    "load",
    "sparse_recovery",
]
