"""Run the code of a page, as the tests do; `python docs/blocks.py docs/PAGE.md` writes outputs and pictures again.

A page is one program: its blocks of `python` and `sh`, in order, in one empty folder. A `text` block right after one
is what it prints. An SVG file that a page writes is one of its pictures, kept in docs/pictures.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parent
PICTURES = DOCS / "pictures"
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```\n(?:\n+```text\n(.*?)^```)?", re.DOTALL | re.MULTILINE)
END = "--- end of block ---"
PORT = "8080"  # where a page's service listens
LIMIT = 600  # seconds; a page that takes longer is stopped
START = r"""
import shlex, subprocess, sys

def _sh(text):
    sys.stdout.flush()
    subprocess.run(["bash", "-euc", text], check=True)

def _coterie(text):
    from coterie.cli import main
    for line in text.replace("\\\n", " ").splitlines():
        sys.argv = shlex.split(line, comments=True)
        try:
            main()
        except SystemExit as done:
            if done.code:
                raise
"""


class Ran(NamedTuple):
    """A block after its run."""

    code: str
    shown: str | None  # the output that the page shows; None if it shows none
    printed: str


def run(page: Path, folder: Path, port: str = PORT) -> list[Ran]:
    """Run the blocks of a page in a folder, with its service on a port. Raises CalledProcessError if one fails."""
    blocks = [found.groups() for found in BLOCK.finditer(page.read_text(encoding="utf-8"))]
    if not blocks:
        return []
    program = START
    for kind, code, _ in blocks:
        code = code.replace(PORT, port)
        program += code if kind == "python" else f"{_runner(code)}({code!r})\n"
        program += f"print({END!r}, flush=True)\n"
    command = [sys.executable, "-X", "utf8", "-W", "error", "-c", program]
    with tempfile.TemporaryFile() as out:  # not a pipe: a service that a page starts would keep it open
        with subprocess.Popen(
            command, cwd=folder, env=_environment(), stdout=out, start_new_session=True
        ) as process:
            try:
                status = process.wait(LIMIT)
            finally:
                _end(process.pid)
        out.seek(0)
        printed = out.read().decode().replace(f":{port}", f":{PORT}")
    if status:
        raise subprocess.CalledProcessError(status, page.name, printed)
    parts = printed.split(f"{END}\n")[:-1]
    return [Ran(code, shown, part) for (_, code, shown), part in zip(blocks, parts, strict=True)]


def _runner(code: str) -> str:
    """Return the function that runs a block of `sh`; our own commands run in this process, which is faster."""
    lines = code.replace("\\\n", " ").splitlines()
    return "_coterie" if all(re.match(r"coterie [^|&>;$]*$", line) for line in lines) else "_sh"


def _environment() -> dict[str, str]:
    """Return an environment in which pictures, tables and draws are the same on all machines."""
    beside = str(Path(sys.executable).parent)
    return {
        **os.environ,
        "PATH": f"{beside}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": str(DOCS / "draws"),
        "COLUMNS": "80",
        "MPLBACKEND": "agg",
        "MATPLOTLIBRC": str(PICTURES / "matplotlibrc"),
        "SOURCE_DATE_EPOCH": "0",
    }


def _end(group: int) -> None:
    """Stop the processes that a page has left running."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def alike(picture: str, other: str) -> bool:
    """Return whether two SVG files show the same: the same text, and every number within a hundredth."""
    words, numbers = _taken_apart(picture)
    other_words, other_numbers = _taken_apart(other)
    return words == other_words and all(
        abs(a - b) <= 0.01 for a, b in zip(numbers, other_numbers, strict=True)
    )


def _taken_apart(picture: str) -> tuple[list[str], list[float]]:
    """Return a picture without its numbers, and the numbers. Ids are left out, because they are hashes."""
    picture = re.sub(r"<metadata>.*?</metadata>", "", picture, flags=re.DOTALL)
    picture = re.sub(r"#?\b[mp][0-9a-f]{10}\b", "id", picture)
    number = re.compile(r"(?<![\w#.])-?\d+(?:\.\d+)?(?:e-?\d+)?(?![\w.])")
    return number.split(picture), [float(one) for one in number.findall(picture)]


def renew(page: Path) -> list[Path]:
    """Run a page, and write into it what it prints now; return the files that were written."""
    with tempfile.TemporaryDirectory() as folder:
        ran = iter(run(page, Path(folder)))
        pictures = [Path(shutil.copy(one, PICTURES)) for one in sorted(Path(folder).glob("*.svg"))]
    text = page.read_text(encoding="utf-8")

    def with_output(found: re.Match[str]) -> str:
        one = next(ran)
        if one.shown is None:
            return found[0]
        start, end = (place - found.start() for place in found.span(3))
        lines = "".join(f"{line.rstrip()}\n" for line in one.printed.splitlines())
        return found[0][:start] + lines + found[0][end:]

    page.write_text(BLOCK.sub(with_output, text), encoding="utf-8")
    return [page, *pictures]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        for written in renew(Path(name)):
            print(written)
