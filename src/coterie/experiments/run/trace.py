"""Traces: one Parquet file per run, one row per round, with a header from which the run can be repeated.

The header is JSON in the file's metadata: `Run.from_header(read_header(path))` is the run, ready to be played again.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from coterie.arrays import JsonObject
from coterie.errors import FileError
from coterie.experiments.run.runs import FORMAT
from coterie.models.files import written_whole

KEY = b"coterie"
SCHEMA = pa.schema(
    [
        ("round", pa.int64()),
        ("user", pa.string()),
        ("item", pa.string()),
        ("choice", pa.int32()),
        ("payoff", pa.float64()),
        ("expected", pa.float64()),
        ("best", pa.float64()),
        ("neighbours", pa.int32()),
        ("updated", pa.int32()),
    ]
)


def read_header(path: str | os.PathLike[str]) -> JsonObject:
    """Return the header of the trace at `path`."""
    try:
        metadata = pq.read_metadata(Path(path)).metadata or {}
    except FileNotFoundError:
        raise FileError(f"there is no trace at {path}") from None
    except (OSError, pa.ArrowException) as error:
        raise FileError(f"{path} is not a readable Parquet file: {error}") from error
    if KEY not in metadata:
        raise FileError(f"{path} is a Parquet file but not a trace: it has no coterie header")
    header = dict(json.loads(metadata[KEY]))
    if header.get("format") != FORMAT:
        raise FileError(f"{path} has trace format {header.get('format')!r}, this coterie reads {FORMAT}")
    return header


def read_trace(path: str | os.PathLike[str], columns: list[str] | None = None) -> pl.DataFrame:
    """Return the rows of a trace, or some of its columns."""
    read_header(path)
    return pl.read_parquet(Path(path), columns=columns, hive_partitioning=False)


def write_trace(path: Path, tables: Iterable[pa.Table], header: JsonObject) -> None:
    """Write a trace atomically; each table becomes one row group."""
    schema = SCHEMA.with_metadata({KEY: json.dumps(header).encode()})
    with written_whole(path) as draft, pq.ParquetWriter(draft, schema, compression="zstd") as writer:
        for table in tables:
            writer.write_table(table.replace_schema_metadata(schema.metadata))
