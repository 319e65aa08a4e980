"""The room of bridges: every name in it is in the reference, says what it takes, and has an example that runs."""

import doctest
import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from coterie import bridges

REFERENCE = Path(__file__).parents[2] / "docs" / "reference.md"


@pytest.mark.parametrize("name", bridges.__all__)
def test_every_name_is_in_the_reference_and_names_its_parameters(name: str) -> None:
    found = re.search(
        rf"^::: (coterie\.[\w.]+)\.{name}$", REFERENCE.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert found is not None, f"docs/reference.md leaves out {name}"
    thing = getattr(bridges, name)
    assert getattr(import_module(found[1]), name) is thing
    doc = inspect.getdoc(thing) or ""
    assert ">>>" in doc
    for parameter in inspect.signature(thing).parameters:
        assert re.search(rf"\b{parameter}\b", doc), f"{name} does not say what {parameter} is"


@pytest.mark.parametrize("home", sorted(set(bridges.HOMES.values()) - {"mlflow"}))
def test_examples_run(home: str) -> None:
    found = doctest.testmod(import_module(f"coterie.bridges.{home}"))
    assert found.failed == 0
    assert found.attempted > 0


def test_no_bridge_needs_the_package_of_another() -> None:
    heavy = ("gymnasium", "mlflow", "pandas", "torch")
    code = (
        "import sys; from coterie.bridges import FromFunction, frame, to_obp; "
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert told.strip() == "[]"
    assert set(dir(bridges)) == set(bridges.__all__) == set(bridges.HOMES)
    with pytest.raises(AttributeError, match=r"module 'coterie.bridges' has no attribute 'gymnast'"):
        bridges.gymnast  # noqa: B018
