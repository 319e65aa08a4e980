"""The package as a new user sees it."""

import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import coterie
from coterie.policies import POLICIES

ROOT = Path(__file__).parent.parent


def test_every_policy_is_one_import_away() -> None:
    for kind in POLICIES.values():
        assert getattr(coterie, kind.__name__) is kind
        assert kind.__name__ in dir(coterie)
    with pytest.raises(AttributeError, match="module 'coterie' has no attribute 'CUB'"):
        coterie.CUB  # noqa: B018


def test_the_version_to_cite_is_the_version() -> None:
    assert f"\nversion: {coterie.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_bill_of_materials_names_coterie_and_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """hatch_build.py runs when a wheel is built, where hatchling is; what it writes needs none of it."""
    stub = ModuleType("hatchling.builders.hooks.plugin.interface")
    stub.BuildHookInterface = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, stub.__name__, stub)
    made = runpy.run_path(str(ROOT / "hatch_build.py"))
    bill = made["bill_of"](
        "coterie", "1.2.3", ["numpy>=2.0"], ["psycopg[binary]>=3.2", "numpy", "Ray_x>1; x"]
    )
    assert bill["metadata"]["component"]["purl"] == "pkg:pypi/coterie@1.2.3"
    scopes = {part["name"]: part["scope"] for part in bill["components"]}
    assert scopes == {"numpy": "required", "psycopg": "optional", "ray-x": "optional"}


def test_every_supported_python_is_tested() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    for page in (".github/workflows/test.yml", ".gitlab-ci.yml"):
        for version in re.findall(r'Python :: (3\.\d+)"', text):
            assert f'"{version}"' in (ROOT / page).read_text(), f"{page} leaves out Python {version}"


@pytest.mark.parametrize(
    ("what", "heavy"),
    [
        ("import coterie", ["numba", "polars", "litestar", "sklearn", "ray"]),
        ("from coterie import AsyncClient, Client", ["numpy", "numba", "scipy", "litestar", "msgspec"]),
        ("from coterie import CAB", ["polars", "sklearn", "scipy.special", "scipy.sparse"]),
        (
            "import coterie.service.serve",
            ["polars", "sklearn", "ray", "jax", "scipy.special", "scipy.sparse"],
        ),
    ],
)
def test_importing_does_not_wait_for_what_is_not_needed_yet(what: str, heavy: list[str]) -> None:
    code = f"{what}; import sys; print([m for m in {heavy} if m in sys.modules])"
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert told.strip() == "[]"


@pytest.mark.parametrize(
    "page", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda page: page.name
)
def test_actions_are_pinned_by_hash_with_their_version_beside(page: Path) -> None:
    used = re.findall(r"uses: (.+)$", page.read_text(), re.MULTILINE)
    assert used
    for action in used:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", action), f"{page.name} uses {action}"
