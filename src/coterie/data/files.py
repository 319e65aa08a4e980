"""Finding and reading data files: plain or gzipped, with errors that name the file, the line and the fix."""

import gzip
import hashlib
import io
import os
import zlib
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from coterie.errors import FileError, MissingExtraError

VARIABLE = "COTERIE_DATA"


def need(module: str, what: str) -> Any:
    """Import an optional module, or raise an error that says how to install it."""
    if find_spec(module.split(".")[0]) is None:
        raise MissingExtraError(f"{what} needs {module.split('.')[0]}: pip install 'coterie[experiments]'")
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
        raise FileError(f"the data folder {path} does not exist or is not a folder")
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
            f"`coterie data check` lists existing files, `coterie data get {dataset}` gets it or says how"
        )
    return path


def read_bytes(path: Path) -> bytes:
    """Return the whole content, unpacked, with lines that end in LF (the published HetRec files mix in CRLF)."""
    try:
        raw = path.read_bytes()
        content = gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FileError(f"{path} is truncated or not a gzip file ({error}); fetch it again") from error
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error}") from error
    return content.replace(b"\r\n", b"\n")


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


def parse_integers(path: Path, content: bytes, columns: Sequence[str]) -> Any:
    """Return the whole-number `columns` of a tab-separated file with a header, as a Polars frame."""
    pl = need("polars", "reading data files")
    header = content.partition(b"\n")[0].decode("latin-1").split("\t")
    missing = [name for name in columns if name not in header]
    if missing:
        raise FileError(
            f"{path}, line 1: no column {missing[0]!r}, found {', '.join(header)[:120]}; "
            "this is not the file it is named for"
        )
    options = {"separator": "\t", "quote_char": None, "columns": list(columns)}
    try:
        table = pl.read_csv(io.BytesIO(content), schema_overrides=dict.fromkeys(columns, pl.Int64), **options)
    except pl.exceptions.PolarsError:
        table = None
    n_lines = content.count(b"\n") + (not content.endswith(b"\n"))
    is_even = content.count(b"\t") == n_lines * (len(header) - 1)  # a short line has fewer tabs
    if table is None or not is_even or any(table.null_count().row(0)):
        raise FileError(f"{path}, {_odd_line(content, header, columns)}; the file is damaged, fetch it again")
    return table


def _odd_line(content: bytes, header: list[str], columns: Sequence[str]) -> str:
    """Return which line is the first that cannot be read, and why."""
    places = [(header.index(name), name) for name in columns]
    for number, line in enumerate(content.decode("latin-1").splitlines()[1:], 2):
        fields = line.split("\t")
        if len(fields) != len(header):
            return f"line {number}: {len(fields)} fields, expected {len(header)}"
        for place, name in places:
            if not fields[place].removeprefix("-").isdecimal():
                return f"line {number}: {name} is {fields[place][:40]!r}, expected a whole number"
    return "somewhere: it cannot be read as tab-separated text"
