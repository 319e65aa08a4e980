"""The log as dsjson, one line per decision with its reward, as Vowpal Wabbit and Personalizer's tools read it.

Files are untrusted: what cannot be read, is not finite or is too large is refused with its line.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from coterie.data.logs.dsjson import OWN, feature_parts, read_decision, read_lines
from coterie.data.logs.pending import Pending, Settled
from coterie.models.features import hash_actions
from coterie.service.core.answers import ranking_of
from coterie.service.core.encoding import encode_action
from coterie.service.core.events import Paid
from coterie.service.core.policy_config import takes_names
from coterie.service.core.records import Configure, Rank, Record, Reward, Tick
from coterie.service.exchange.payoffs import Payoff
from coterie.service.ids import NAME, RULE, is_id
from coterie.service.private import open_private
from coterie.service.settings import Config

LONGEST_ID = 1024


def write_dsjson(records: Iterable[tuple[int, Record]], names: Mapping[int, str], path: Path) -> int:
    """Write one line per decision, with its reward, and return how many. The log is read once, as a stream."""
    count = 0
    with open_private(path) as file:
        parts: dict[str, list[dict[str, float]]] = {}
        for one in settled(_with_parts(records, parts)):
            line = _line(one.decision, names, one.reward, parts.pop(one.event, []))
            file.write((json.dumps(line, ensure_ascii=False) + "\n").encode())
            count += 1
    return count


def _with_parts(
    records: Iterable[tuple[int, Record]], parts: dict[str, list[dict[str, float]]]
) -> Iterator[tuple[int, Record]]:
    """Yield the records, and collect the parts of each event's rewards."""
    for position, record in records:
        if isinstance(record, Reward) and record.outcome == "applied" and record.parts:
            parts.setdefault(record.event, []).append(record.parts)
        yield position, record


def settled(records: Iterable[tuple[int, Record]]) -> Iterator[Settled]:
    """Yield decisions in order, each when its reward is final."""
    pending: Pending[Rank] = Pending()
    for _, record in records:
        if isinstance(record, Configure):
            config = record.config
            pending.configure(config.wait, config.default_reward, config.aggregation)
        elif isinstance(record, Rank):
            pending.add(record.event, record.at, record)
        elif isinstance(record, Reward) and record.outcome == "applied":
            pending.reward(record.event, record.value)
        elif isinstance(record, Tick):
            yield from pending.tick(record.at, record.jump)
    yield from pending.rest()


def read_dsjson(path: Path, config: Config, user_path: str = "user.id") -> Iterator[Payoff]:
    """Yield what each line's shown action earned; lines without a decision are skipped."""
    for _, payoff in read_lines(path, partial(_payoff, config=config, user_path=user_path)):
        if payoff is not None:
            yield payoff


def _line(
    record: Rank, names: Mapping[int, str], reward: float, parts: list[dict[str, float]]
) -> dict[str, Any]:
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
        "o": [{"v": reward, "EventId": record.event} | ({"parts": parts} if parts else {})],
        "Timestamp": datetime.fromtimestamp(record.at / 1000, UTC).isoformat().replace("+00:00", "Z"),
        "Version": "1",
        "EventId": record.event,
        "a": [k + 1 for k in order],
        "p": [chances[record.actions[k]] for k in order],
        "c": {
            **shared,
            OWN: {"user": names.get(record.user)} | ({"arm": record.arm} if record.arm else {}),
            "_multi": [
                {"_tag": name, "i": {"constant": 1, "id": name}, **({"j": given} if given else {})}
                for name, given in zip(record.actions, features, strict=True)
            ],
        },
        "VWState": {"m": "coterie"},
    }


def _payoff(line: Any, config: Config, user_path: str) -> Payoff | None:
    decision = read_decision(line, user_path)
    if decision is None or "_label_cost" not in line:
        return None
    actions, chosen, value, user = decision.actions, decision.chosen, decision.reward, decision.user
    if not 0 <= chosen < len(actions):
        raise ValueError(f"it chose action {chosen + 1} of {len(actions)}")
    if not (math.isfinite(value) and -1 <= value <= 1):
        raise ValueError(f"its reward is {value!r}, expected a number in [-1, 1]")
    name = decision.names[chosen]
    if not decision.is_own and not is_id(user):
        raise ValueError(f"the user at {user_path!r} is {user[:80]!r}, {RULE}")
    if len(user) > LONGEST_ID or len(name) > LONGEST_ID:
        raise ValueError(f"its ids are longer than {LONGEST_ID} characters")
    if not (re.search(NAME, user) and re.search(NAME, name)):
        raise ValueError(f"its ids are {user[:80]!r} and {name[:80]!r}, expected no control characters")
    around = [{key: part} for key, part in decision.context.items()]
    features = feature_parts(actions[chosen])
    if takes_names(config):
        return Payoff(user, Paid(hashed=encode_action(name, features, around)), value)
    if not any(map(feature_parts, actions)):
        return Payoff(user, Paid(name), value)
    x = hash_actions([(name, features)], around, config.dimensions)[0]
    return Payoff(user, Paid(x=x.tobytes()), value)
