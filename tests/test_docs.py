"""The documentation runs, and leaves nothing out."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from coterie.cli.app import app
from coterie.policies import POLICIES

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    code = "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.S))
    if code:
        subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, cwd=tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_command_is_documented() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    for name in get_command(app).commands:  # type: ignore[attr-defined]
        assert f"coterie {name}" in text, f"no page mentions `coterie {name}`"


def test_every_policy_is_documented() -> None:
    text = (ROOT / "docs" / "policies.md").read_text()
    for name, kind in POLICIES.items():
        assert f"`{kind.__name__}`" in text, f"docs/policies.md does not mention {kind.__name__}"
        assert f"`{name}`" in text, f"docs/policies.md does not mention the name {name!r}"


def test_the_package_docstring_runs() -> None:
    import doctest

    import coterie

    assert doctest.testmod(coterie).failed == 0
