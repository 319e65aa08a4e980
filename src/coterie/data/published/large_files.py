"""Reads files that are larger than memory in pieces, and selects users and ads from them."""

import gzip
import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from coterie.arrays import JsonObject
from coterie.data.files import cache_folder, need
from coterie.errors import FileError
from coterie.models.files import written_whole

if TYPE_CHECKING:
    import polars as pl

PIECE = 32 * 2**20  # bytes read at a time
DAMAGED = "the file is damaged, fetch it again"
FORMAT = 1  # of the cached selection


class Layout(NamedTuple):
    """How a file of records is written."""

    separator: str
    names: Sequence[str]  # of all columns
    has_header: bool


class Selection(NamedTuple):
    """The records of the chosen users and ads, in the order of the file."""

    users: NDArray[np.uint32]  # (records,) numbered from 0
    items: NDArray[np.uint32]  # (records,) numbered from 0
    clicks: NDArray[np.uint8]  # (records,)
    n_users: int
    n_items: int
    n_read: int  # records in the file


def first_line(path: Path) -> str:
    """Return the first line of a file."""
    with _opened(path) as file:
        return next(_lines(path, file, 1 << 16), b"").partition(b"\n")[0].decode("latin-1").rstrip("\r")


def pieces(
    path: Path, layout: Layout, columns: dict[str, str], size: int = PIECE
) -> Iterator["pl.DataFrame"]:
    """Yield some columns as Polars frames, a few hundred thousand records at a time.

    `columns` maps names to "number" or "text". The file is never read as a whole.
    """
    read = 1  # the number of the next line
    with _opened(path) as file:
        for piece in _lines(path, file, size):
            yield parse(path, piece, read, layout, columns)
            read += piece.count(b"\n")


def parse(path: Path, piece: bytes, first: int, layout: Layout, columns: dict[str, str]) -> "pl.DataFrame":
    """Return some columns of a piece of a file, which begins in line `first`, as a Polars frame."""
    pl = need("polars", "reading data files")
    types = {"number": pl.Int64, "text": pl.String}
    header = layout.separator.join(layout.names) + "\n"
    body = piece.partition(b"\n")[2] if layout.has_header and first == 1 else piece
    try:
        frame = pl.read_csv(
            io.BytesIO(header.encode() + body),
            separator=layout.separator,
            quote_char='"' if layout.separator == "," else None,
            columns=list(columns),
            schema_overrides={name: types[kind] for name, kind in columns.items()},
        )
    except pl.exceptions.PolarsError:
        frame = None
    if frame is None or any(frame.null_count().row(0)):
        refuse(path, piece, first, layout, columns)
    return frame  # type: ignore[no-any-return]


def _opened(path: Path) -> IO[bytes]:
    try:
        return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error}") from error


def _lines(path: Path, file: IO[bytes], size: int) -> Iterator[bytes]:
    """Yield whole lines, about `size` bytes of them at a time."""
    rest = b""
    try:
        while piece := file.read(size):
            whole, newline, after = (rest + piece).rpartition(b"\n")
            rest = after if newline else whole + after
            if newline:
                yield whole + newline
    except (EOFError, zlib.error, OSError) as error:
        raise FileError(f"{path} is truncated or damaged ({error}); fetch it again") from error
    if rest:
        yield rest + b"\n"


def refuse(path: Path, piece: bytes, first: int, layout: Layout, columns: dict[str, str]) -> NoReturn:
    """Raise an error that names the first line that cannot be read."""
    for number, line in enumerate(piece.decode("latin-1").splitlines(), first):
        if number == 1 and layout.has_header:
            continue
        fields = [field.strip('"') for field in line.split(layout.separator)]
        if len(fields) != len(layout.names):
            raise FileError(
                f"{path}, line {number}: {len(fields)} fields, expected {len(layout.names)}; {DAMAGED}"
            )
        for name, kind in columns.items():
            value = fields[list(layout.names).index(name)]
            if not value or (kind == "number" and not value.removeprefix("-").isdecimal()):
                raise FileError(
                    f"{path}, line {number}: {name} is {value[:40]!r}, expected a whole number; {DAMAGED}"
                )
    raise FileError(
        f"{path}, after line {first}: cannot be read as text with {layout.separator!r} between; {DAMAGED}"
    )


def select(
    frames: Callable[[], Iterator["pl.DataFrame"]],
    n_users: int,
    n_items: int,
    on_progress: Callable[[str], None],
) -> Selection:
    """Select the `n_items` most served ads, then the `n_users` users with the most records of those ads.

    Each call of `frames()` reads from the start and yields frames with the columns user, item and click,
    without records of unknown users. Ties go to the lower id. The file is read three times; only counts are
    held in memory.
    """
    pl = need("polars", "reading logs")
    on_progress("counting ads")
    items, n_read = _most(pl, frames(), "item", n_items)
    on_progress("counting users")
    users, _ = _most(pl, (f.filter(pl.col("item").is_in(items.implode())) for f in frames()), "user", n_users)
    on_progress("taking their records")
    user_rows, item_rows = _numbered(pl, users, "user"), _numbered(pl, items, "item")
    parts = [
        frame.join(user_rows, on="user", maintain_order="left")
        .join(item_rows, on="item", maintain_order="left")
        .select(pl.col("user_row", "item_row").cast(pl.UInt32), pl.col("click").clip(0, 1).cast(pl.UInt8))
        for frame in frames()
    ]
    table = pl.concat(parts) if parts else None
    if table is None or not len(table):
        raise FileError("no records are left after selecting users and ads; select more of them")
    used, codes = np.unique(table["item_row"].to_numpy(), return_inverse=True)
    rows, clicks = table["user_row"].to_numpy(), table["click"].to_numpy()
    return Selection(rows, codes.astype(np.uint32), clicks, len(users), len(used), n_read)


def _most(pl: Any, frames: Iterator[Any], column: str, n: int) -> tuple[Any, int]:
    """Return the `n` most frequent values, and the number of records."""
    counts, read, waiting = None, 0, []
    for frame in frames:
        read += len(frame)
        waiting.append(frame.group_by(column).len())
        if len(waiting) == 16:
            counts, waiting = _summed(pl, counts, waiting, column), []
    counts = _summed(pl, counts, waiting, column)
    if not read:
        raise FileError("the file holds no records")
    return counts.sort(["len", column], descending=[True, False])[column].head(n), read


def _summed(pl: Any, counts: Any, more: list[Any], column: str) -> Any:
    tables = [table for table in (counts, *more) if table is not None]
    return pl.concat(tables).group_by(column).agg(pl.col("len").sum()) if tables else None


def _numbered(pl: Any, values: Any, column: str) -> Any:
    return values.sort().to_frame(column).with_row_index(f"{column}_row")


def kept_selection(path: Path, settings: JsonObject, make: Callable[[], Selection]) -> Selection:
    """Return the cached selection for the same file and settings, or make and cache it."""
    stat = path.stat()
    key = json.dumps([FORMAT, path.name, stat.st_size, stat.st_mtime_ns, settings], sort_keys=True)
    kept = cache_folder() / f"{path.name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npz"
    try:
        with np.load(kept, allow_pickle=False) as found:
            sizes = [int(n) for n in found["sizes"]]
            return Selection(found["users"], found["items"], found["clicks"], *sizes)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        made = make()
    with suppress(OSError):  # no cache folder: the next call makes it again
        kept.parent.mkdir(parents=True, exist_ok=True)
        sizes_now = np.array([made.n_users, made.n_items, made.n_read])
        with written_whole(kept) as draft, draft.open("wb") as file:
            np.savez(file, users=made.users, items=made.items, clicks=made.clicks, sizes=sizes_now)
    return made
