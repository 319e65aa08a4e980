"""The site: every page is in its navigation, every public name in its reference, and every link works."""

import os
import re
import runpy
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import coterie

ROOT = Path(__file__).parent.parent
NAVIGATION = [
    "README.md" if page == "index.md" else page
    for page in re.findall(r"^ +- .+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
]
REFERENCE = (ROOT / "docs" / "reference.md").read_text()
LINK = re.compile(r"\]\(([^)\s#]*)#([^)\s]+)\)")


def test_every_page_is_listed_and_every_listed_page_is_there() -> None:
    pages = {str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")}
    assert pages <= set(NAVIGATION), f"mkdocs.yml does not list {pages - set(NAVIGATION)}"
    assert [page for page in NAVIGATION if not (ROOT / page).exists()] == []
    assert len(NAVIGATION) == len(set(NAVIGATION)) > 10


@pytest.mark.parametrize("name", [name for name in coterie.__all__ if name != "__version__"])
def test_every_public_name_is_in_the_reference(name: str) -> None:
    found = re.search(rf"^::: (coterie\.[\w.]+)\.{name}$", REFERENCE, re.MULTILINE)
    assert found is not None, f"docs/reference.md leaves out {name}"
    assert getattr(import_module(found[1]), name) is getattr(coterie, name)


def headings(page: Path) -> set[str]:
    """Return the anchors of a page, as GitHub and the site make them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    plain = [
        re.sub(r"[^\w\s-]", "", line).strip().lower() for line in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    ]
    return {re.sub(r"\s+", "-", line) for line in plain}


@pytest.mark.parametrize("page", NAVIGATION)
def test_links_to_headings_work(page: str) -> None:
    here = ROOT / page
    for target, anchor in LINK.findall(here.read_text(encoding="utf-8")):
        if "://" not in target:
            there = here.parent / target if target else here
            assert anchor in headings(there), f"{page} links to {target}#{anchor}"


def test_examples_of_docstrings_are_shown_as_code(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = ModuleType("griffe")
    stub.Extension = stub.Object = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "griffe", stub)
    fenced = runpy.run_path(str(ROOT / "docs" / "fenced.py"))["fenced"]
    assert fenced("What.\n\n>>> f(1)\n2\n>>> f(2)\n\nMore.\n>>> f(3)") == (
        "What.\n\n\n```pycon\n>>> f(1)\n2\n>>> f(2)\n```\n\nMore.\n\n```pycon\n>>> f(3)\n```"
    )
    below = "What.\n\nExamples\n--------\n>>> f(1)\n2\n>>> f(2)"
    assert fenced(below) == below
    assert fenced("Nothing to run.") == "Nothing to run."


def test_the_site_is_built_without_a_warning() -> None:
    """Strict: a broken link, or a name that the reference cannot find, fails the build."""
    zensical = Path(sys.executable).parent / "zensical"
    if not zensical.exists():
        pytest.skip("zensical is not installed: make test installs it")
    done = subprocess.run(
        [ROOT / ".ci" / "docs"], env={**os.environ, "ZENSICAL": str(zensical)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    page = (ROOT / "build" / "site" / "docs" / "reference" / "index.html").read_text(encoding="utf-8")
    assert 'id="coterie.policies.hierarchical.Hierarchical"' in page
    assert (ROOT / "build" / "site" / "search.json").exists()
