"""Engines keep users' models outside this process: in shards on several machines, or on a GPU.

>>> from coterie import CAB
>>> from coterie.engines import Local
>>> policy = CAB(one_hot=True, engine=Local(shards=4))
>>> policy.choose("ada", ["news", "music"])
0
"""

from typing import TYPE_CHECKING

from coterie.lazy import lazy_names

if TYPE_CHECKING:
    from coterie.engines.cuda import Cuda
    from coterie.engines.local import Local

HOMES = {"Cuda": "cuda", "Local": "local"}

__all__ = ["Cuda", "Local"]


__getattr__, __dir__ = lazy_names("coterie.engines", HOMES)
