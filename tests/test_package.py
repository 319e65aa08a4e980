"""The package as a stranger meets it."""

import subprocess
import sys

import pytest

import coterie
from coterie.policies import POLICIES


def test_every_policy_is_one_import_away() -> None:
    for kind in POLICIES.values():
        assert getattr(coterie, kind.__name__) is kind
        assert kind.__name__ in dir(coterie)
    with pytest.raises(AttributeError, match="module 'coterie' has no attribute 'CUB'"):
        coterie.CUB  # noqa: B018


def test_importing_does_not_wait_for_the_compiler_or_the_extras() -> None:
    heavy = ("numba", "polars", "litestar", "sklearn", "ray")
    code = f"import sys, coterie; print([m for m in {heavy} if m in sys.modules])"
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert told.strip() == "[]"
    code = (
        "import sys; from coterie import CAB; print([m for m in ('polars', 'sklearn') if m in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert told.strip() == "[]"
