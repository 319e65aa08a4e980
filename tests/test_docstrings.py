"""Every example in a docstring runs; everything public says what it takes, returns and raises."""

import doctest
import inspect
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie import CoterieError, Policy
from coterie.policies import POLICIES

SOURCE = Path(coterie.__file__).parent
MODULES = sorted(
    ".".join(("coterie", *file.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
    for file in SOURCE.rglob("*.py")
    if ">>> " in file.read_text(encoding="utf-8")
)
NEEDS = {"coterie.bridges.gym": "gymnasium", "coterie.policies.vw": "vowpalwabbit"}  # what an example imports
PUBLIC = [getattr(coterie, name) for name in coterie.__all__ if name != "__version__"]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in NEEDS and find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path))
    assert doctest.testmod(import_module(name)).failed == 0


def test_modules_with_examples_are_found() -> None:
    policies = {kind.__module__ for kind in POLICIES.values()}
    assert {"coterie", "coterie.policies", "coterie.policies.base.policy", *policies} <= set(MODULES)


@pytest.mark.parametrize("thing", PUBLIC, ids=lambda thing: thing.__name__)
def test_everything_public_has_an_example_and_names_its_parameters(thing: Any) -> None:
    doc = inspect.getdoc(thing) or ""
    assert doc
    if isinstance(thing, type) and issubclass(thing, CoterieError):
        return
    assert ">>>" in doc, f"{thing.__name__} has no example"
    if thing.__name__ in ("Batch", "Decision", "Policy"):
        return  # their fields have comments
    for name in inspect.signature(thing).parameters:
        assert re.search(rf"\b{name}\b", doc), f"{thing.__name__} does not say what {name} is"


@pytest.mark.parametrize("kind", POLICIES.values(), ids=lambda kind: kind.name)
def test_policies_say_what_they_raise_and_name_no_lines_of_a_paper(kind: type[Policy]) -> None:
    assert "Raises ParameterError" in (inspect.getdoc(kind) or "")
    assert not re.search(r"\blines? \d", inspect.getsource(kind))


def test_methods_name_their_parameters() -> None:
    for name, method in inspect.getmembers(Policy, inspect.isfunction):
        if name.startswith("_"):
            continue
        doc = inspect.getdoc(method) or ""
        for parameter in inspect.signature(method).parameters:
            if parameter not in ("self", "tensors"):
                assert re.search(rf"`{parameter}`", doc), f"Policy.{name} does not say what {parameter} is"
