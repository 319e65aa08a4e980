"""The documentation runs, and leaves nothing out."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.cli.app import COMMANDS
from coterie.policies import POLICIES

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXAMPLE = re.compile(r"```python\n(.*?)```(?:\n+```text\n(.*?)```)?", re.DOTALL)
END = "--- end of block ---"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_of_a_page_runs_and_prints_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    """A block of `text` right after a block of `python` is what that block prints."""
    blocks = EXAMPLE.findall(page.read_text(encoding="utf-8"))
    if not blocks:
        return
    code = "".join(f"{block}\nprint({END!r})\n" for block, _ in blocks)
    command = [sys.executable, "-X", "utf8", "-W", "error", "-c", code]
    done = subprocess.run(command, check=True, cwd=tmp_path, stdout=subprocess.PIPE, encoding="utf-8")
    for (block, shown), printed in zip(blocks, done.stdout.split(f"{END}\n")[:-1], strict=True):
        assert not shown or printed.strip() == shown.strip(), (
            f"{page.name} shows otherwise:\n{block}\n{printed}"
        )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_command_is_documented() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    for name in COMMANDS:
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
