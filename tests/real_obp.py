"""Import the Open Bandit Pipeline without PyTorch, seaborn and tqdm, which are replaced by empty modules."""

import sys
import warnings
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest

MISSING = ("torch", "torch.nn", "torch.nn.functional", "torch.optim", "torch.utils", "torch.utils.data")
MORE = ("seaborn", "tqdm")


class _StandIn(ModuleType):
    """A module in which every name is an empty class."""

    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def import_obp(part: str) -> ModuleType:
    """Import a part of obp, such as "ope"; skip the test if obp is not installed."""
    if find_spec("obp") is None:
        pytest.skip("obp is not installed: pip install --no-deps obp==0.4.1")
    added = [name for name in (*MISSING, *MORE) if name not in sys.modules]
    added = [name for name in added if find_spec(name.partition(".")[0]) is None]
    for name in added:
        sys.modules[name] = stand_in = _StandIn(name)
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], own, stand_in)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of obp's own docstrings
            return import_module(f"obp.{part}")
    finally:
        for name in added:
            del sys.modules[name]
