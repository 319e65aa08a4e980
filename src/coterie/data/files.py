"""Finding and reading data files: plain or gzipped, with errors that name the file, the line and the fix."""

import gzip
import hashlib
import os
import shlex
import zlib
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from coterie.errors import FileError, MissingExtraError, ParameterError

VARIABLE = "COTERIE_DATA"
BINARY = (".rda", ".RData", ".compress")  # every other file is text


def need(module: str, what: str, extra: str = "experiments") -> Any:
    """Import an optional module, or raise an error that says how to install it."""
    if find_spec(module.split(".")[0]) is None:
        raise MissingExtraError(f"{what} needs {module.split('.')[0]}: pip install 'coterie[{extra}]'")
    return import_module(module)


def data_folder(folder: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder with the data files: the one given, or the one COTERIE_DATA names."""
    found = folder if folder is not None else os.environ.get(VARIABLE)
    if not found:
        raise FileError(
            f"no data folder is named: give --data FOLDER, or set {VARIABLE}; "
            "`coterie data get lastfm --data FOLDER` downloads what can be downloaded"
        )
    path = Path(found)
    if not path.is_dir():
        raise FileError(
            f"the data folder {path} does not exist or is not a folder; `{get_command('NAME', path)}` makes it"
        )
    return path


def find_file(folder: Path, places: Sequence[str], names: Sequence[str]) -> Path | None:
    """Return the first of `names`, plain or with .gz, in `folder` itself or one of the `places` below it."""
    for place in (*places, "."):
        for name in names:
            for path in (folder / place / name, folder / place / f"{name}.gz"):
                if path.is_file():
                    return path
    return None


def find_needed(folder: Path, places: Sequence[str], names: Sequence[str], dataset: str) -> Path:
    """Return what `find_file` finds, or raise an error that says where to put the file."""
    path = find_file(folder, places, names)
    if path is None:
        raise FileError(
            f"{dataset}: there is no {' or '.join(names)} (plain or .gz) in {folder / places[0]}; "
            f"`{get_command(dataset, folder)}` gets it or says how"
        )
    return path


def get_command(dataset: str, folder: Path) -> str:
    """Return the command that gets a dataset's files into this folder."""
    return f"coterie data get {dataset} --data {shlex.quote(str(folder))}"


def with_lf(name: str, content: bytes) -> bytes:
    """Return a text file's content with lines that end in LF (the published HetRec files mix in CRLF)."""
    return content if name.endswith(BINARY) else content.replace(b"\r\n", b"\n")


def read_bytes(path: Path) -> bytes:
    """Return the whole content, unpacked; the lines of text end in LF."""
    try:
        raw = path.read_bytes()
        content = gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FileError(f"{path} is truncated or not a gzip file ({error}); fetch it again") from error
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error}") from error
    return with_lf(path.name, content)


def sha256(content: bytes) -> str:
    """Return the SHA-256 hash of a file's content."""
    return hashlib.sha256(content).hexdigest()


def check_fingerprint(dataset: str, folder: Path, found: str, expected: str | None) -> None:
    """Raise FileError if the files are not those that a run was described with; `expected` may be None."""
    if expected not in (None, found):
        raise FileError(
            f"{dataset}: the files in {folder} are not those of the run described "
            f"(fingerprint {found}, expected {expected})"
        )


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise ParameterError unless `value` is one of `choices`."""
    if value not in choices:
        raise ParameterError(f"{name} is {value!r}, expected one of: {', '.join(choices)}")


def cache_folder() -> Path:
    """Return the folder for prepared data: COTERIE_CACHE, or `coterie` in the user's cache folder."""
    named = os.environ.get("COTERIE_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(named) if named else Path(base) / "coterie"
