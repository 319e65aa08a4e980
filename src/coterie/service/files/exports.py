"""The log as files: as Parquet, one row per record, or as dsjson, one line per decision with its reward.

In Parquet, common fields are columns and the whole record is JSON: a replay decides as the service did. Vowpal Wabbit
and Personalizer's tools read dsjson.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from coterie.data.logs.dsjson import OWN
from coterie.data.logs.records import Rank, Record, Reward, public
from coterie.data.logs.service_log import FORMAT, ROWS
from coterie.data.logs.settling import Settled, settled
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


def write_dsjson(records: Iterable[tuple[int, Record]], names: Mapping[int, str], path: Path) -> int:
    """Write one line per decision, with its reward, and return how many. The log is read once, as a stream."""
    count = 0
    with open_private(path) as file:
        for one in settled(records):
            file.write((json.dumps(_line(one, names), ensure_ascii=False) + "\n").encode())
            count += 1
    return count


def _line(one: Settled, names: Mapping[int, str]) -> dict[str, Any]:
    record, reward = one.decision, one.reward
    context, features = record.sent
    likely = dict(zip(record.open_to, record.likely.tolist(), strict=True))
    shared: dict[str, Any] = {}
    for part in context:
        shared |= part
    return {
        "_label_cost": -reward,
        "_label_probability": record.probability,
        "_label_Action": record.choice + 1,
        "_labelIndex": record.choice,
        "o": [{"v": reward, "EventId": record.event} | ({"parts": one.parts} if one.parts else {})],
        "Timestamp": datetime.fromtimestamp(record.at / 1000, UTC).isoformat().replace("+00:00", "Z"),
        "Version": "1",
        "EventId": record.event,
        "a": [k + 1 for k in record.order],
        "p": [likely.get(k, 0.0) for k in record.order],
        "c": {
            **shared,
            OWN: {"user": names.get(record.user)} | ({"arm": record.arm} if record.arm else {}),
            "_multi": [
                {"_tag": name, "i": {"constant": 1, "id": name}, **({"j": given} if given else {})}
                for name, given in zip(record.actions, features, strict=True)
            ],
        },
        "VWState": {"m": "coterie"},
        **({} if one.was_shown else {"_skipLearn": True}),
    }
