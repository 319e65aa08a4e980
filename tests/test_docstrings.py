"""Everything public says what it takes, returns and raises, with an example that runs."""

import doctest
import inspect
import re
from importlib import import_module
from typing import Any

import pytest

import coterie
from coterie import CoterieError, Policy
from coterie.policies import POLICIES

MODULES = [f"coterie.policies.base.{name}" for name in ("policy", "decision")] + [
    *sorted({kind.__module__ for kind in POLICIES.values()}),
    "coterie.policies",
    "coterie.data.logs.log",
    "coterie.experiments.run.replay",
    "coterie.models.batches",
    "coterie.models.users.recovery",
]
PUBLIC = [getattr(coterie, name) for name in coterie.__all__ if name != "__version__"]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if name.endswith(".vw"):
        pytest.importorskip("vowpalwabbit")
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path))
    found = doctest.testmod(import_module(name))
    assert found.failed == 0
    assert found.attempted > 0


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
