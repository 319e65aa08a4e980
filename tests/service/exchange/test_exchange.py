"""The log goes out as Parquet and dsjson and comes back; what was exported replays to the same decisions."""

import json
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.errors import FileError
from coterie.models.features import hash_actions
from coterie.service.core.bandit import Bandit
from coterie.service.core.question import Action, Question
from coterie.service.core.records import Rank, decode
from coterie.service.exchange.dsjson import read_dsjson, write_dsjson
from coterie.service.exchange.parquet import read_parquet, write_parquet
from coterie.service.exchange.payoffs import payoffs_of
from coterie.service.settings import Config
from coterie.service.snapshots import snapshot
from tests.service.helpers import START, bandit


def _lived() -> tuple[Bandit, list[Any]]:
    made = bandit(policy="cab", exploration=0.3, wait=30.0, dimensions=8)
    for k in range(80):
        features = [{"size": k % 3}] if k % 2 else None
        context = [{"device": {"mobile": bool(k % 3)}}]
        actions = [Action(name, features) for name in "abc"]
        made.rank(Question(f"e{k}", f"user-{k % 5}", actions, context), START + 1000 * k)
        if k % 3:
            made.reward(f"e{k - k % 2}", (k % 5) / 4, START + 1000 * k)
    log = [decode(data) for data in made.outbox]
    return made, log


def test_a_parquet_export_replays_to_the_same_state_and_decisions(tmp_path: Path) -> None:
    made, log = _lived()
    assert write_parquet(enumerate(log), made.ids, tmp_path / "log.parquet") == len(log)
    back = list(read_parquet(tmp_path / "log.parquet"))
    assert back == log
    bandit_ = Bandit()
    for record in back:
        if isinstance(record, Rank):  # decided again, offline, with what was known then
            sent: Any = {"context": [], "actions": [None] * 3}
            sent = json.loads(record.features) if record.features else sent
            actions = [Action(name, f) for name, f in zip(record.actions, sent["actions"], strict=True)]
            bandit_.names = {"them": record.user}
            question = Question(record.event, "them", actions, sent["context"])
            again, _ = bandit_._decide(question, b"", bandit_.now)
            assert (again.choice, again.order, again.x) == (record.choice, record.order, record.x)
        bandit_.apply(record)
        bandit_.drain()
    assert snapshot.dump(bandit_) == snapshot.dump(made)


def test_a_dsjson_export_warm_starts_another_service(tmp_path: Path) -> None:
    made, log = _lived()
    path = tmp_path / "log.dsjson"
    assert write_dsjson(enumerate(log), made.ids, path) == 80
    line = json.loads(path.read_text().splitlines()[1])
    assert sum(line["p"]) == pytest.approx(1)
    assert line["p"][line["a"].index(line["_label_Action"])] == line["_label_probability"]
    payoffs = list(read_dsjson(path, Config(policy="cab", dimensions=8)))
    assert len(payoffs) == 80
    assert {payoff.user for payoff in payoffs} == {f"user-{k}" for k in range(5)}
    ranks = [record for record in log if isinstance(record, Rank)]
    for payoff, record in zip(payoffs, ranks, strict=True):
        assert payoff.paid.item == (record.actions[record.choice] if record.x is None else None)
        if record.x is not None:
            assert payoff.paid.x is not None
            assert np.allclose(np.frombuffer(payoff.paid.x), np.frombuffer(record.x))
    other = bandit(policy="cab", dimensions=8)
    for payoff in payoffs:
        other.observe(payoff.user, payoff.value, START, *payoff.paid)
    assert other.policies.items is not None
    assert other.policies.vectors is not None
    assert other.policies.items.learned + other.policies.vectors.learned == 80


def test_an_exported_log_warm_starts_with_what_it_learned_default_rewards_too(tmp_path: Path) -> None:
    made, log = _lived()
    payoffs = list(payoffs_of(log))
    assert made.policies.items is not None
    assert made.policies.vectors is not None
    assert len(payoffs) == made.policies.items.learned + made.policies.vectors.learned
    other = bandit(policy="cab", dimensions=8)
    for payoff in payoffs:
        other.observe(payoff.user, payoff.value, START, *payoff.paid)
    assert other.policies.items is not None
    for number in made.names.values():
        ours, theirs = (
            made.policies.items.explain(number, ["a", "b", "c"]),
            other.policies.items.explain(other.names[f"imported-{number}"], ["a", "b", "c"]),
        )
        assert np.array_equal(ours.estimate, theirs.estimate)
        assert np.array_equal(ours.members, theirs.members)


@pytest.mark.parametrize("aggregation", ["earliest", "sum", "average"])
def test_a_dsjson_line_holds_what_was_learned(tmp_path: Path, aggregation: Any) -> None:
    """Against the bandit itself: the value of each closed event, with evictions, late and repeated rewards."""
    chance = random.Random(7)
    made = bandit(aggregation=aggregation, wait=5.0, default_reward=-0.25)
    learned: dict[int, float] = {}
    told: list[tuple[int, float]] = []
    made.policies.on_learn = lambda user, paid, value: told.append((user, value))
    for k in range(300):
        at = START + 700 * k
        made.rank(Question(f"e{k}", f"user-{k}", [Action(name) for name in "abc"]), at)
        for _ in range(chance.randrange(3)):
            made.reward(f"e{chance.randrange(max(0, k - 15), k + 1)}", chance.choice([1.0, 0.5, -1.0]), at)
        if k == 150:
            made.configure(
                Config(aggregation=aggregation, wait=3.0, default_reward=0.5),
                at,
            )
    made.tick(START + 10**9)
    log = [decode(data) for data in made.outbox]
    learned = dict(told)  # each user decided once
    path = tmp_path / "log.dsjson"
    assert write_dsjson(enumerate(log), made.ids, path) == 300
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["EventId"] for line in lines] == [f"e{k}" for k in range(300)]
    assert [-line["_label_cost"] for line in lines] == [learned[k] for k in range(300)]


def test_a_dsjson_export_does_not_hold_the_log_in_memory(tmp_path: Path) -> None:
    def log() -> Iterator[tuple[int, Any]]:
        made = bandit(wait=1.0, max_users=5, max_event_bytes=100_000, parameters={"slots": 1024})
        for k in range(4000):
            made.rank(
                Question(f"e{k}", f"user-{k % 7}", [Action("x" * 200 + name) for name in "ab"]),
                START + 100 * k,
            )
            for data in made.drain().records:
                yield k, decode(data)

    tracemalloc.start()
    assert write_dsjson(log(), {}, tmp_path / "log.dsjson") == 4000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (tmp_path / "log.dsjson").stat().st_size > 4_000_000
    assert peak < 1_500_000


def test_a_line_of_personalizers_own_log_is_read(tmp_path: Path) -> None:
    line = {
        "_label_cost": -0.5,
        "_label_probability": 0.8,
        "_label_Action": 2,
        "_labelIndex": 1,
        "EventId": "e",
        "a": [2, 1],
        "c": {
            "user": {"id": "ann"},
            "_multi": [{"_tag": "x", "j": [{"t": "a"}]}, {"_tag": "y", "j": [{"t": "b"}]}],
        },
        "p": [0.8, 0.2],
    }
    path = tmp_path / "log.dsjson"
    path.write_text(json.dumps(line) + "\n\n" + json.dumps({"RewardValue": 1.0, "EventId": "e"}) + "\n")
    (payoff,) = read_dsjson(path, Config(policy="cab", dimensions=16))
    assert (payoff.user, payoff.paid.item, payoff.value) == ("ann", None, 0.5)
    assert (
        payoff.paid.x == hash_actions([("y", [{"t": "b"}])], [], 16)[0].tobytes()
    )  # the user's id is no feature


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "line 1 of .* is not a decision"),
        ('{"c": {}, "_label_cost": 0}', "line 1"),
        ('{"c": {"_multi": [{}]}, "_label_cost": -7, "_label_Action": 1}', "reward is 7.0"),
        ('{"c": {"_multi": [{}]}, "_label_cost": NaN, "_label_Action": 1}', "reward is nan"),
        ('{"c": {"_multi": [{}]}, "_label_cost": 0, "_label_Action": 5}', "chose action 5 of 1"),
    ],
)
def test_what_is_not_dsjson_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "log.dsjson"
    path.write_text(text)
    with pytest.raises(FileError, match=message):
        list(read_dsjson(path, Config()))


def test_what_is_not_an_exported_log_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    path.write_bytes(b"PAR1 nonsense")
    with pytest.raises(FileError, match="cannot be read as an exported log"):
        list(read_parquet(path))
