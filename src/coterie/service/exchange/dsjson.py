"""The log as dsjson, one line per decision with its reward, as Vowpal Wabbit and Personalizer's tools read it."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coterie.data.logs.dsjson import OWN
from coterie.data.logs.records import Record
from coterie.data.logs.settling import Settled, settled
from coterie.service.private import open_private


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
