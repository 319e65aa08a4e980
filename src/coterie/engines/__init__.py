"""Where users' models are kept, if not in this process: `CAB(..., engine=Ray(shards=16))`.

>>> from coterie import CAB
>>> from coterie.engines import Local
>>> policy = CAB(one_hot=True, engine=Local(shards=4))
>>> policy.choose("ada", ["news", "music"])
0
"""

from coterie.engines.local import Local

__all__ = ["Local"]
