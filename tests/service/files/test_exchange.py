"""The log goes out as Parquet and dsjson and comes back; what was exported replays to the same decisions."""

import json
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.data.logs.interactions import open_interactions
from coterie.data.logs.records import Rank, decode
from coterie.data.logs.rules import Config
from coterie.data.logs.service_log import exported
from coterie.errors import FileError
from coterie.service.core.bandit import Bandit
from coterie.service.core.encoding import shown
from coterie.service.core.question import Action, Question
from coterie.service.files.exports import write_dsjson, write_parquet
from coterie.service.files.payoffs import payoffs_of
from coterie.service.snapshots import snapshot
from tests.service.helpers import START, ask, bandit


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
    back = [record for _, _, record in exported(tmp_path / "log.parquet")]
    assert back == log
    bandit_ = Bandit()
    for record in back:
        if isinstance(record, Rank):  # decided again, offline, with what was known then
            context, features = record.sent
            actions = [Action(name, own) for name, own in zip(record.actions, features, strict=True)]
            bandit_.names = {"them": record.user}
            question = Question(record.event, "them", actions, context)
            again, _ = bandit_._decide(question, b"", bandit_.now)
            assert (again.order, again.chances, again.action) == (record.order, record.chances, record.action)
        bandit_.apply(record)
        bandit_.drain()
    assert snapshot.dump(bandit_) == snapshot.dump(made)


@pytest.mark.parametrize("kind", ["parquet", "dsjson"])
def test_an_export_warm_starts_another_service_with_what_was_learned(tmp_path: Path, kind: str) -> None:
    made, log = _lived()
    path = tmp_path / f"log.{kind}"
    write = write_parquet if kind == "parquet" else write_dsjson
    write(enumerate(log), made.ids, path)
    payoffs = list(payoffs_of(open_interactions(path)))
    ranks = [record for record in log if isinstance(record, Rank)]
    assert [payoff.user for payoff in payoffs] == [made.ids[record.user] for record in ranks]
    assert [payoff.action for payoff in payoffs] == [record.action for record in ranks]
    other = bandit(policy="cab", dimensions=8)
    for payoff in payoffs:
        other.observe(payoff.user, payoff.action, payoff.value, START)
    assert other.policies.learned == 80
    made.tick(START + 10**9)  # default rewards too
    assert made.policies.learned == 80
    for user in made.names:
        ours, theirs = (
            one.policies.made["items"].explain(one.names[user], ["a", "b", "c"]) for one in (made, other)
        )
        assert np.allclose(ours.estimate, theirs.estimate)
        assert np.array_equal(ours.members, theirs.members)


def test_a_line_has_the_probabilities_of_all_actions(tmp_path: Path) -> None:
    made, log = _lived()
    assert write_dsjson(enumerate(log), made.ids, tmp_path / "log.dsjson") == 80
    line = json.loads((tmp_path / "log.dsjson").read_text().splitlines()[1])
    assert sum(line["p"]) == pytest.approx(1)
    assert line["p"][line["a"].index(line["_label_Action"])] == line["_label_probability"]


def test_a_deferred_decision_that_was_not_shown_is_marked(tmp_path: Path) -> None:
    made = bandit()
    for event in ("shown", "never"):
        made.rank(ask(event, deferred=True), START)
    made.activate("shown", START)
    log = [decode(data) for data in made.outbox]
    assert write_dsjson(enumerate(log), made.ids, tmp_path / "log.dsjson") == 2
    found = open_interactions(tmp_path / "log.dsjson")
    assert len(found.interactions) == 1
    assert found.notes == ("1 lines hold no decision that was shown, and were left out.",)


@pytest.mark.parametrize("aggregation", ["earliest", "sum", "average"])
def test_a_dsjson_line_holds_what_was_learned(tmp_path: Path, aggregation: Any) -> None:
    """Against the bandit itself: the value of each closed event, with evictions, late and repeated rewards."""
    chance = random.Random(7)
    made = bandit(aggregation=aggregation, wait=5.0, default_reward=-0.25)
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
    path = tmp_path / "log.dsjson"
    assert write_dsjson(enumerate(log), made.ids, path) == 300
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["EventId"] for line in lines] == [f"e{k}" for k in range(300)]
    assert [-line["_label_cost"] for line in lines] == [made.events[f"e{k}"].value for k in range(300)]


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
    (payoff,) = payoffs_of(open_interactions(path))
    assert (payoff.user, payoff.action, payoff.value) == ("ann", shown("y", [{"t": "b"}], ()), 0.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "line 1 of .* is not a decision"),
        ('{"c": {}, "_label_cost": 0}', "line 1"),
        (
            '{"c": {"_multi": [{}]}, "_label_cost": -7, "_label_Action": 1, "_label_probability": 1}',
            "the reward 7.0",
        ),
        (
            '{"c": {"_multi": [{}]}, "_label_cost": NaN, "_label_Action": 1, "_label_probability": 1}',
            "the reward nan",
        ),
        (
            '{"c": {"_multi": [{}]}, "_label_cost": 0, "_label_Action": 5, "_label_probability": 1}',
            "action 5 of 1",
        ),
    ],
)
def test_what_is_not_dsjson_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "log.dsjson"
    path.write_text(text)
    with pytest.raises(FileError, match=message):
        open_interactions(path)


def test_what_is_not_an_exported_log_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    path.write_bytes(b"PAR1 nonsense")
    with pytest.raises(FileError, match="cannot be read as an exported log"):
        open_interactions(path)
