"""The log as Parquet: one row per record, with common fields as columns and the whole record as JSON.

A replay of the file decides as the service did. Files are untrusted: what cannot be read is refused with the reason.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from coterie.data.logs.service_log import FORMAT
from coterie.errors import FileError
from coterie.service.core.records import Rank, Record, Reward, public
from coterie.service.private import open_private

ROWS = 20_000  # written or read at once

_json = msgspec.json.Encoder()
_back = msgspec.json.Decoder(Record)


def write_parquet(records: Iterable[tuple[int, Record]], names: Mapping[int, str], path: Path) -> int:
    """Write the log, and return how many records it has."""
    columns = {"position": pa.int64(), "at": pa.timestamp("ms", tz="UTC")}
    columns |= dict.fromkeys(("kind", "event", "user", "chosen"), pa.string())
    columns |= dict.fromkeys(("probability", "value"), pa.float64())
    columns |= {"outcome": pa.string(), "parts": pa.map_(pa.string(), pa.float64()), "record": pa.string()}
    schema = pa.schema(columns, metadata={"coterie-log": FORMAT})
    left, count = _rows(records, names), 0
    with open_private(path) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        while rows := [*islice(left, ROWS)]:
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))
            count += len(rows)
    return count


def read_parquet(path: Path) -> Iterator[Record]:
    """Yield the records of an exported log, in order."""
    try:
        with pq.ParquetFile(path) as file:
            found = (file.schema_arrow.metadata or {}).get(b"coterie-log", b"none").decode()
            if found != FORMAT:
                raise FileError(
                    f"{path} has log format {found!r}, this coterie reads format {FORMAT!r}; "
                    "export it again with this coterie"
                )
            expected = None
            for part in file.iter_batches(batch_size=ROWS, columns=["position", "record"]):
                for row in part.to_pylist():
                    if expected is not None and row["position"] != expected:
                        raise FileError(f"{path} lacks record {expected}")
                    expected = row["position"] + 1
                    yield _back.decode(row["record"])
    except (pa.ArrowException, OSError, msgspec.MsgspecError, TypeError, KeyError) as error:
        raise FileError(f"{path} cannot be read as an exported log: {error}") from error


def _rows(records: Iterable[tuple[int, Record]], names: Mapping[int, str]) -> Iterator[dict[str, Any]]:
    for position, record in records:
        rank = isinstance(record, Rank)
        user = getattr(record, "user", None)
        yield {
            "position": position,
            "at": record.at,
            "kind": type(record).__name__.lower(),
            "event": getattr(record, "event", None),
            "user": None if user is None else names.get(user),
            "chosen": record.actions[record.choice] if rank else None,  # type: ignore[union-attr]
            "probability": record.probability if rank else None,  # type: ignore[union-attr]
            "value": getattr(record, "value", None),
            "outcome": getattr(record, "outcome", None),
            "parts": [*record.parts.items()] if isinstance(record, Reward) else None,
            "record": _json.encode(public(record)).decode(),
        }
