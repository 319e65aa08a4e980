"""CONTRIBUTING is right: the files that it names exist, and have the functions that it names."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "coterie"
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def _walk() -> str:
    return TEXT[TEXT.index("## One decision") : TEXT.index("## What a change brings")]


def test_the_map_names_every_folder_that_there_is() -> None:
    plan = TEXT[TEXT.index("## Where things are") : TEXT.index("## One decision")]
    rooms = {folder.name for folder in SOURCE.iterdir() if (folder / "__init__.py").exists()}
    assert rooms == set(re.findall(r"src/coterie/(\w+)\s", plan))
    for name in re.findall(r"^        (\w+)/", plan, re.MULTILINE):
        assert list(SOURCE.rglob(name)), name


def test_the_walk_names_files_and_functions_that_exist() -> None:
    files = re.findall(r"`([\w/]+\.py)`", _walk())
    assert len(files) >= 12
    paths = [next(iter(SOURCE.rglob(name)), None) for name in files]
    assert None not in paths, dict(zip(files, paths, strict=True))
    source = "\n".join(path.read_text(encoding="utf-8") for path in paths if path)
    for name in {*re.findall(r"`(?:\w+\.)?(\w+)`", _walk())} - {"py"}:
        assert re.search(rf"(?:def|class) {name}\b", source), name
