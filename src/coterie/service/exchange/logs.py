"""The log as Parquet and as VW's dsjson, and both back in: to look at it elsewhere, and to warm-start.

Parquet holds the whole log, one row a record with the common fields as columns and the record itself as
JSON, so that a replay of the file decides as the service did. dsjson holds one line a decision with what it
earned, as Vowpal Wabbit and Personalizer's tools read it. Files are untrusted: what cannot be read, is not
finite or is too large is refused with its line or row.
"""

import json
import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from coterie.errors import FileError, MissingExtraError
from coterie.models.features import hash_actions
from coterie.service.coordination.answers import ranking_of
from coterie.service.core.bandit import Bandit
from coterie.service.core.encoding import encode_action
from coterie.service.core.events import Paid
from coterie.service.core.policy_config import takes_names
from coterie.service.core.records import Configure, Rank, Record, Reward, Tick
from coterie.service.ids import NAME
from coterie.service.log.store import Store
from coterie.service.personalizer.errors import Refusal
from coterie.service.personalizer.user import SHARED, find_user
from coterie.service.private import open_private
from coterie.service.settings import Config

FORMAT = "1"
LONGEST_LINE = 10_000_000  # characters
LONGEST_ID = 1024


class Payoff(Struct, frozen=True):
    """One line of history to learn from."""

    user: str
    paid: Paid
    value: float


_json = msgspec.json.Encoder()
_back = msgspec.json.Decoder(Record)


def write_parquet(records: Iterable[tuple[int, Record]], names: Mapping[int, str], path: Path) -> int:
    """Write the log, and return how many records it has."""
    pa, pq = _arrow()
    schema = pa.schema(
        [
            ("position", pa.int64()),
            ("at", pa.timestamp("ms", tz="UTC")),
            ("kind", pa.string()),
            ("event", pa.string()),
            ("user", pa.string()),
            ("chosen", pa.string()),
            ("probability", pa.float64()),
            ("value", pa.float64()),
            ("outcome", pa.string()),
            ("record", pa.string()),
        ],
        metadata={"coterie-log": FORMAT},
    )
    count = 0
    with open_private(path) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for rows in _chunks(_rows(records, names), 20_000):
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))
            count += len(rows)
    return count


def read_parquet(path: Path) -> Iterator[Record]:
    """Yield the records of an exported log, in order."""
    pa, pq = _arrow()
    try:
        with pq.ParquetFile(path) as file:
            found = (file.schema_arrow.metadata or {}).get(b"coterie-log", b"none").decode()
            if found != FORMAT:
                raise FileError(
                    f"{path} has log format {found!r}, this coterie reads format {FORMAT!r}; "
                    "export it again with this coterie"
                )
            expected = None
            for part in file.iter_batches(batch_size=20_000, columns=["position", "record"]):
                for row in part.to_pylist():
                    if expected is not None and row["position"] != expected:
                        raise FileError(f"{path} lacks record {expected}")
                    expected = row["position"] + 1
                    yield _back.decode(row["record"])
    except (pa.ArrowException, OSError, msgspec.MsgspecError, TypeError, KeyError) as error:
        raise FileError(f"{path} cannot be read as an exported log: {error}") from error


def replay_records(records: Iterable[Record]) -> Bandit:
    """Return the bandit that a whole exported log gives."""
    bandit = Bandit()
    for record in records:
        bandit.apply(record)
        bandit.drain()
    return bandit


def write_dsjson(records: Iterable[tuple[int, Record]], names: Mapping[int, str], path: Path) -> int:
    """Write one line a decision, with what it earned, and return how many. The log is read once, as a stream."""
    count = 0
    with open_private(path) as file:
        for record, reward in _settled(records):
            file.write((json.dumps(_dsjson(record, names, reward), ensure_ascii=False) + "\n").encode())
            count += 1
    return count


def _settled(records: Iterable[tuple[int, Record]]) -> Iterator[tuple[Rank, float]]:
    """Yield decisions in order, each with what it earned, once no reward can be applied to it any more.

    Held are only those that may still wait: the bandit closes an event at the first tick after its wait, or
    when `max_events` newer ones are known.
    """
    config = Config()
    held: deque[tuple[float, Rank]] = deque()  # with the end of the wait
    earned: dict[str, float] = {}

    def oldest() -> tuple[Rank, float]:
        _, rank = held.popleft()
        return rank, min(1.0, max(-1.0, earned.pop(rank.event, config.default_reward)))

    for _, record in records:
        if isinstance(record, Configure):
            config = record.config
        elif isinstance(record, Rank):
            held.append((record.at + math.ceil(config.wait * 1000), record))
            while len(held) > config.max_events:
                yield oldest()
        elif isinstance(record, Reward) and record.outcome == "applied":
            earned[record.event] = earned.get(record.event, 0.0) + record.value
        elif isinstance(record, Tick):
            if record.jump:
                held = deque((end + record.jump, rank) for end, rank in held)
            while held and held[0][0] <= record.at:
                yield oldest()
    while held:
        yield oldest()


def read_dsjson(path: Path, config: Config, user_path: str = "user.id") -> Iterator[Payoff]:
    """Yield what each line's chosen action earned; lines without a decision are passed over."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                if len(line) > LONGEST_LINE:
                    raise ValueError(f"it has more than {LONGEST_LINE} characters")
                payoff = _payoff(json.loads(line), config, user_path)
            except (
                ValueError,
                TypeError,
                KeyError,
                IndexError,
                AttributeError,
                RecursionError,
                Refusal,
            ) as error:
                raise FileError(f"line {number} of {path} is not a decision in dsjson: {error}") from error
            if payoff is not None:
                yield payoff


def payoffs_of(
    records: Iterable[Record], names: Mapping[int, str] | None = None, config: Config | None = None
) -> Iterator[Payoff]:
    """Yield what an exported log learned, default rewards too, to warm-start another service.

    With `config`, they are as its policy learns them, whatever the log's own was.
    """
    bandit = Bandit()
    bandit.fixed = config
    known = dict(names or {})
    learned: list[Payoff] = []

    def heard(user: int, paid: Paid, value: float) -> None:
        learned.append(Payoff(known.get(user, f"imported-{user}"), paid, value))

    bandit.policies.on_learn = heard
    for record in records:
        bandit.apply(record)
        bandit.drain()
        yield from learned
        learned.clear()


def export_log(store: Store) -> Iterator[tuple[int, Record]]:
    """Yield a store's records with their positions."""
    for batch in store.read():
        yield from enumerate(batch.records(), batch.first)


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
            "record": _json.encode(record).decode(),
        }


def _dsjson(record: Rank, names: Mapping[int, str], reward: float) -> dict[str, Any]:
    sent = json.loads(record.features) if record.features else {"context": [], "actions": []}
    features = sent["actions"] or [None] * len(record.actions)
    chances = {candidate.id: candidate.probability for candidate in ranking_of(record).ranking}
    order = list(record.order)
    shared: dict[str, Any] = {}
    for part in sent["context"]:
        shared |= part
    return {
        "_label_cost": -reward,
        "_label_probability": record.probability,
        "_label_Action": record.choice + 1,
        "_labelIndex": record.choice,
        "o": [{"v": reward, "EventId": record.event}],
        "Timestamp": datetime.fromtimestamp(record.at / 1000, UTC).isoformat().replace("+00:00", "Z"),
        "Version": "1",
        "EventId": record.event,
        "a": [k + 1 for k in order],
        "p": [chances[record.actions[k]] for k in order],
        "c": {
            **shared,
            "_coterie": {"user": names.get(record.user)} | ({"arm": record.arm} if record.arm else {}),
            "_multi": [
                {"_tag": name, "i": {"constant": 1, "id": name}, **({"j": given} if given else {})}
                for name, given in zip(record.actions, features, strict=True)
            ],
        },
        "VWState": {"m": "coterie"},
    }


def _payoff(line: Any, config: Config, user_path: str) -> Payoff | None:
    if not isinstance(line, dict):
        raise ValueError("it is not an object")
    if "c" not in line or "_label_cost" not in line:
        return None  # dangling rewards, activations and the like
    context = dict(line["c"])
    actions = context.pop("_multi")
    own = context.pop("_coterie", None)
    if own is None:  # from Personalizer: the user stands among the features, and is none
        user, (context,) = find_user([context], user_path)
    else:
        user = own.get("user") or SHARED
    chosen = int(line["_label_Action"]) - 1 if "_label_Action" in line else int(line["_labelIndex"])
    if not 0 <= chosen < len(actions):
        raise ValueError(f"it chose action {chosen + 1} of {len(actions)}")
    value = -float(line["_label_cost"])
    if not (math.isfinite(value) and -1 <= value <= 1):
        raise ValueError(f"its reward is {value!r}, expected a number in [-1, 1]")
    action = actions[chosen]
    name = str(action.get("_tag") or action.get("i", {}).get("id") or chosen)
    if not isinstance(user, str) or len(user) > LONGEST_ID or len(name) > LONGEST_ID:
        raise ValueError(f"its ids are longer than {LONGEST_ID} characters")
    if not (re.search(NAME, user) and re.search(NAME, name)):
        raise ValueError(f"its ids are {user[:80]!r} and {name[:80]!r}, expected no control characters")
    around = [{key: part} for key, part in context.items() if not key.startswith("_")]
    if takes_names(config):
        return Payoff(user, Paid(hashed=encode_action(name, action.get("j") or [], around)), value)
    if not any(other.get("j") for other in actions):
        return Payoff(user, Paid(name), value)
    x = hash_actions([(name, action.get("j") or [])], around, config.dimensions)[0]
    return Payoff(user, Paid(x=x.tobytes()), value)


def _chunks(rows: Iterator[dict[str, Any]], size: int) -> Iterator[list[dict[str, Any]]]:
    chunk: list[dict[str, Any]] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _arrow() -> Any:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingExtraError("Parquet needs pyarrow: pip install 'coterie[service]'") from error
    return pa, pq
