"""Engines keep users' models outside this process: on a GPU (`coterie.engines.Cuda`)."""

from typing import TYPE_CHECKING

from coterie.lazy import lazy_names

if TYPE_CHECKING:
    from coterie.engines.cuda import Cuda

__all__ = ["Cuda"]

__getattr__, __dir__ = lazy_names("coterie.engines", {"Cuda": "cuda"})
