"""The log as Parquet: one row per record, with common fields as columns and the whole record as JSON.

A replay of the file decides as the service did.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from coterie.data.logs.records import Rank, Record, Reward, public
from coterie.data.logs.service_log import FORMAT, ROWS
from coterie.service.private import open_private

_json = msgspec.json.Encoder()


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
