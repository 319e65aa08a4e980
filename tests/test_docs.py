"""The code in the documentation runs, and every command and policy is documented."""

import re
import runpy
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from coterie.cli.app import COMMANDS
from coterie.policies import POLICIES
from tests.service.process import reserved_port

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = ROOT / "docs" / "blocks.py"
NEEDS = {
    "tutorial-personalizer.md": "azure.ai.personalizer",
    "tutorial-prompts.md": "litellm",
    "tutorial-service.md": "litestar",
    "tutorial-vowpal-wabbit.md": "vowpalwabbit",
}  # packages that may be missing


@pytest.fixture(scope="module")
def blocks() -> SimpleNamespace:
    """Return the module that runs the blocks of a page."""
    return SimpleNamespace(**runpy.run_path(str(BLOCKS)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_of_a_page_runs_prints_and_draws_what_the_page_shows(
    page: Path, blocks: SimpleNamespace, tmp_path: Path
) -> None:
    """A `text` block right after a block of code is what it prints; an SVG file is one of the pictures."""
    if page.name in NEEDS:
        pytest.importorskip(NEEDS[page.name])
    with reserved_port() as port:
        ran = blocks.run(page, tmp_path, str(port))
    for code, shown, printed in ran:
        assert shown is None or plain(printed) == plain(shown), (
            f"{page.name} shows another output:\n{code}\n{printed}"
        )
    for drawn in tmp_path.glob("*.svg"):
        kept = blocks.PICTURES / drawn.name
        again = f"python docs/blocks.py docs/{page.name} writes it again"
        assert f"](pictures/{drawn.name})" in page.read_text(encoding="utf-8"), (
            f"{page.name} does not show it"
        )
        assert kept.exists(), f"{kept} is missing; {again}"
        assert blocks.alike(drawn.read_text(), kept.read_text()), f"{kept} differs; {again}"


MADE = SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "made.py")))


@pytest.mark.parametrize("page", [page for page in MADE.PAGES if "<!-- made:" in page.read_text()], ids=str)
def test_the_numbers_of_a_page_are_those_of_the_results(page: Path) -> None:
    for mark, shown in MADE.MARK.findall(page.read_text(encoding="utf-8")):
        assert shown == MADE.made(mark), (
            f"{page.name} is stale at {mark!r}; `python docs/made.py` writes it again"
        )


def test_the_first_page_and_the_results_have_their_numbers_made() -> None:
    for name in ("README.md", "docs/compare.md", "docs/policies.md", "docs/speed.md"):
        assert "<!-- made:" in (ROOT / name).read_text(encoding="utf-8"), name


def test_pages_have_no_measured_number_outside_of_marks() -> None:
    for name in (
        "speed", "scale-out", "production", "service", "hierarchical", "policies", "compare", "contest", "guide",
        "evaluate", "theory", "explain-guarantees", "migrate-from-personalizer",
    ):  # fmt: skip
        measured, _, _ = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8").partition("on paper")
        assert not re.findall(r".*\d (?:µs|ms|GiB|times (?:as|faster)).*", MADE.MARK.sub("", measured))


def test_a_stale_number_and_an_unknown_mark_are_found() -> None:
    page = "In 0<!-- made: compared runs -->99<!-- end --> runs."
    assert MADE.filled(page) != page
    assert MADE.filled(MADE.filled(page)) == MADE.filled(page)
    with pytest.raises(SystemExit, match="there is no mark 'nothing'"):
        MADE.filled("<!-- made: nothing --><!-- end -->")
    with pytest.raises(SystemExit, match=r"dense\.json has no row that starts with 'nothing'"):
        MADE.filled("<!-- made: benches dense nothing --><!-- end -->")


def test_a_page_is_written_again_with_what_it_prints(blocks: SimpleNamespace, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A\n\n```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n\n```python\nx = 1\n```\n")
    assert blocks.renew(page) == [page]
    assert page.read_text() == (
        "# A\n\n```python\nprint(1 + 1)\n```\n\n```text\n2\n```\n\n```python\nx = 1\n```\n"
    )


def test_a_page_with_a_wrong_output_is_found(blocks: SimpleNamespace, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nprint(1)\n```\n\n```text\n2\n```\n\n```sh\nexpr 1 + 1\n```\n\n```text\n```\n\n"
        "```python\nopen('x.svg', 'w').close()\n```\n"
    )
    ran = blocks.run(page, tmp_path)
    assert [(shown, printed) for _, shown, printed in ran] == [("2\n", "1\n"), ("", "2\n"), (None, "")]
    assert (tmp_path / "x.svg").exists()
    page.write_text("```sh\nfalse\n```\n")
    with pytest.raises(subprocess.CalledProcessError):
        blocks.run(page, tmp_path)


def plain(text: str) -> str:
    """Return a text without blanks at the ends of lines."""
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


@pytest.mark.parametrize(
    ("drawn", "same"),
    [
        ('<path d="M 1.004 2" id="m0123456789"/><text>5 clicks</text>', True),
        ('<path d="M 1.1 2" id="m0123456789"/><text>5 clicks</text>', False),
        ('<path d="M 1 2" id="m0123456789"/><text>5 visits</text>', False),
        ('<path d="M 1 2 3" id="m0123456789"/><text>5 clicks</text>', False),
    ],
)
def test_pictures_are_compared_by_what_they_show(drawn: str, same: bool, blocks: SimpleNamespace) -> None:
    assert blocks.alike('<path d="M 1 2" id="mabcdef0123"/><text>5 clicks</text>', drawn) is same


def test_every_tutorial_ends_in_a_picture_and_every_picture_is_shown() -> None:
    texts = {page.name: page.read_text(encoding="utf-8") for page in PAGES}
    for name, text in texts.items():
        assert not name.startswith("tutorial-") or "](pictures/" in text, f"{name} has no picture"
    for picture in (ROOT / "docs" / "pictures").glob("*.svg"):
        assert any(f"](pictures/{picture.name})" in text for text in texts.values()), (
            f"no page shows {picture}"
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
