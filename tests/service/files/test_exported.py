"""Logs of interactions: the service's store and exports say the same, and so do Vowpal Wabbit's and obp's files."""

import json
import math
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from coterie import Hierarchical
from coterie.cli.app import app
from coterie.data.logs.interactions import Interaction, InteractionLog, open_interactions
from coterie.data.logs.records import decode, encode, pack
from coterie.errors import FileError, ParameterError
from coterie.evaluation import evaluate
from coterie.models.features import flatten
from coterie.service.core.bandit import Bandit
from coterie.service.core.question import Action, Question
from coterie.service.files.exports import write_dsjson, write_parquet
from coterie.service.log.erasure import scrub
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.log.store import Append
from tests.service.helpers import START, bandit

run = CliRunner()


def lived(**config: Any) -> Bandit:
    """A bandit that decided 60 times, with features, excluded actions, and rewards for two in three."""
    made = bandit(**{"wait": 20.0, "exploration": 0.2, **config})
    for k in range(60):
        actions = [Action(name, [{"size": ord(name) - 96, "kind": "x"}]) for name in "abcd"]
        context = [{"device": {"mobile": bool(k % 2)}}]
        excluded = frozenset("d") if k % 5 == 0 else frozenset()
        question = Question(f"e{k}", f"user-{k % 4}", actions, context, excluded, baseline="b")
        made.rank(question, START + 1000 * k)
        if k % 3:
            made.reward(f"e{k}", (k % 4) / 4, START + 1000 * k)
    return made


def kept(made: Bandit, folder: Path) -> dict[str, Path]:
    """Write the log as a store, as Parquet and as dsjson."""
    records = [decode(data) for data in made.outbox]
    paths = {name: folder / f"log.{name}" for name in ("db", "parquet", "dsjson")}
    store = SqliteStore(str(paths["db"]))
    half = len(records) // 2
    for first, part in ((0, made.outbox[:half]), (half, made.outbox[half:])):
        store.append(Append(pack(first, part), dict(made.ids) if first == 0 else {}))
    store.close()
    write_parquet(enumerate(records), made.ids, paths["parquet"])
    write_dsjson(enumerate(records), made.ids, paths["dsjson"])
    return paths


def same(first: Interaction, second: Interaction) -> bool:
    assert first.chances is not None
    assert second.chances is not None
    return first._replace(chances=None) == second._replace(chances=None) and np.allclose(
        first.chances, second.chances
    )


@pytest.mark.parametrize("config", [{}, {"policy": "cab", "dimensions": 8}, {"explore": "epsilon"}], ids=str)
def test_store_and_parquet_say_the_same(tmp_path: Path, config: dict[str, Any]) -> None:
    paths = kept(lived(**config), tmp_path)
    store, parquet = (open_interactions(paths[name]).interactions for name in ("db", "parquet"))
    assert len(store) == 60
    assert all(same(a, b) for a, b in zip(store, parquet, strict=True))
    first = store[1]
    assert (first.user, first.actions, first.baseline) == ("user-1", tuple("abcd"), 1)
    assert first.context == flatten([{"device": {"mobile": True}}])
    assert first.features is not None
    assert first.features[1] == flatten([{"size": 2, "kind": "x"}])
    assert first.reward == 0.25
    assert first.at == START / 1000 + 1
    assert store[0].actions == tuple("abc")  # d was excluded
    assert store[3].reward == 0.0  # the default: no reward came


def test_dsjson_says_the_same_but_for_the_excluded_and_the_baseline(tmp_path: Path) -> None:
    paths = kept(lived(), tmp_path)
    store, dsjson = (open_interactions(paths[name]).interactions for name in ("db", "dsjson"))
    for a, b in zip(store, dsjson, strict=True):
        assert b.baseline == 0
        if len(a.actions) == 4:
            assert same(a._replace(baseline=0), b)
        else:
            assert b.chances is not None
            assert b.chances[3] == 0


def test_what_was_logged_is_what_the_policy_would_have_done(tmp_path: Path) -> None:
    """The service's own policy, replayed over its own log, decides with the logged probabilities: weights are 1."""
    made = bandit(exploration=0.02)
    for k in range(80):
        actions = [Action(name, [{"size": ord(name) - 96}]) for name in "abc"]
        made.rank(Question(f"e{k}", f"user-{k % 4}", actions, [{"hour": k % 24}]), START + k)
        made.reward(f"e{k}", float(k % 3 == 0), START + k)
    log = open_interactions(kept(made, tmp_path)["db"])
    found = evaluate(log, {"ours": Hierarchical(floor=0.02)})
    assert np.allclose(found["ours"].evidence.weights, 1.0, atol=1e-9)


def test_a_store_is_opened_read_only_and_nothing_is_made_beside_it(tmp_path: Path) -> None:
    path = kept(lived(), tmp_path)["db"]
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(path, alone / "log.db")
    before = (alone / "log.db").read_bytes()
    open_interactions(alone / "log.db")
    assert os.listdir(alone) == ["log.db"]
    assert (alone / "log.db").read_bytes() == before
    with pytest.raises(FileError, match="there is no file"):
        open_interactions(alone / "none.db")
    assert os.listdir(alone) == ["log.db"]


def test_a_store_can_be_read_while_its_service_writes(tmp_path: Path) -> None:
    made = lived()
    store = SqliteStore(str(tmp_path / "log.db"))
    try:
        store.append(Append(pack(0, made.outbox), dict(made.ids)))
        assert len(open_interactions(tmp_path / "log.db").interactions) == 60
        made.outbox.clear()
        made.rank(Question("late", "user-1", [Action("a"), Action("b")]), START + 10**6)
        store.append(Append(pack(store.bounds()[1], made.outbox)))
        assert len(open_interactions(tmp_path / "log.db").interactions) == 61
    finally:
        store.close()


def test_rewards_are_counted_as_the_engine_counts_them(tmp_path: Path) -> None:
    """Sums are cut to 1, late ones do not count, deferred decisions count once shown."""
    made = bandit(aggregation="sum", wait=10.0, default_reward=0.5)
    actions = [Action("a"), Action("b")]
    for k, (user, deferred) in enumerate(
        [("u", False), ("u", True), ("u", True), ("v", False), ("w", False)]
    ):
        made.rank(Question(f"e{k}", user, actions, deferred=deferred), START)
    made.activate("e1", START)
    for event in ("e0", "e0", "e1"):
        made.reward(event, 0.75, START + 1)
    made.tick(START + 20_000)
    made.reward("e3", 1.0, START + 21_000)  # late
    made.rank(Question("e5", "u", actions), START + 30_000)
    records = [decode(data) for data in made.outbox]
    write_parquet(enumerate(records), made.ids, tmp_path / "log.parquet")
    log = open_interactions(tmp_path / "log.parquet")
    assert [(one.user, one.reward) for one in log.interactions] == [
        ("u", 1.0),
        ("u", 0.75),
        ("v", 0.5),
        ("w", 0.5),
        ("u", 0.5),
    ]
    assert log.notes == (
        "1 decisions could still get a reward when the log ended; they count with what they had by then.",
        "1 decisions were never shown, and were left out.",
    )


def test_an_average_is_read_as_the_engine_learns_it(tmp_path: Path) -> None:
    made = bandit(aggregation="average", wait=10.0)
    made.rank(Question("e", "u", [Action("a"), Action("b")]), START)
    for value in (1.0, 1.0, -0.5):
        made.reward("e", value, START + 1)
    made.tick(START + 20_000)
    write_parquet(enumerate([decode(data) for data in made.outbox]), made.ids, tmp_path / "log.parquet")
    assert [one.reward for one in open_interactions(tmp_path / "log.parquet").interactions] == [0.5]
    assert made.events["e"].value == 0.5


def test_decisions_for_forgotten_users_are_left_out(tmp_path: Path) -> None:
    made = lived()
    number = made.forget("user-1", START + 10**6)
    assert number is not None
    store = SqliteStore(str(tmp_path / "log.db"))
    store.append(Append(pack(0, made.outbox), {k: name for k, name in made.ids.items() if k != number}))
    scrub(store, [number])
    store.close()
    log = open_interactions(tmp_path / "log.db")
    assert len(log.interactions) == 45
    assert {one.user for one in log.interactions} == {"user-0", "user-2", "user-3"}
    assert log.notes == ("15 decisions for forgotten users were left out.",)


def test_slots_of_the_service_are_decisions_of_their_own(tmp_path: Path) -> None:
    made = bandit()
    made.rank(Question("e:1", "u", [Action("a"), Action("b")], slot="top"), START)
    records = [decode(data) for data in made.outbox]
    write_parquet(enumerate(records), made.ids, tmp_path / "log.parquet")
    assert "1 decisions are slots of a larger one" in open_interactions(tmp_path / "log.parquet").notes[-1]


def test_apprentice_mode_has_no_support_for_others(tmp_path: Path) -> None:
    for name, path in kept(lived(mode="apprentice"), tmp_path).items():
        log = open_interactions(path)
        with pytest.raises(ParameterError, match="cannot tell what 'uniform' would have earned"):
            evaluate(log, ["uniform"])
        if name != "dsjson":  # which does not tell the baseline
            assert evaluate(log, ["baseline"])["baseline"].evidence.effective == 60


def test_damage_is_named(tmp_path: Path) -> None:
    path = kept(lived(), tmp_path)["db"]
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE log (first)")
    connection.close()
    with pytest.raises(FileError, match="is a database of something else"):
        open_interactions(other)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE log SET checksum = checksum + 1 WHERE first > 0")
    connection.close()
    with pytest.raises(
        FileError, match=r"log.db cannot be read: log records \d+ to \d+ are damaged: their checksum"
    ):
        open_interactions(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE log SET version = 9")
    connection.close()
    with pytest.raises(FileError, match="have format version 9, this coterie reads version 3"):
        open_interactions(path)
    (tmp_path / "text.db").write_text("hello")
    with pytest.raises(FileError, match="is none of: a service's store"):
        open_interactions(tmp_path / "text.db")
    (tmp_path / "log.csv").write_text("user,item,payoff\n")
    with pytest.raises(FileError, match=r"a \.csv log has no probabilities, so play policies on it with"):
        open_interactions(tmp_path / "log.csv")
    pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "a.parquet")
    with pytest.raises(FileError, match="has log format 'none', expected '2'"):
        open_interactions(tmp_path / "a.parquet")
    with pytest.raises(FileError, match="PostgreSQL store cannot be read") as caught:
        open_interactions("postgresql://ann:secret@127.0.0.1:1/log")
    assert "secret" not in str(caught.value)
    with pytest.raises(ParameterError, match="log is a int, expected a path"):
        open_interactions(3)


def test_a_record_that_cannot_be_is_named(tmp_path: Path) -> None:
    made = lived()
    records = [decode(data) for data in made.outbox]
    import msgspec

    place = next(k for k, record in enumerate(records) if type(record).__name__ == "Rank")
    records[place] = msgspec.structs.replace(records[place], chances=bytes(32))
    store = SqliteStore(str(tmp_path / "odd.db"))
    store.append(Append(pack(0, [encode(record) for record in records]), {}))
    store.close()
    with pytest.raises(FileError, match=rf"log record {place} of .* with probability 0.0, expected above 0"):
        open_interactions(tmp_path / "odd.db")


# dsjson of others

VW_LINES = [
    {
        "_label_cost": -1.0,
        "_label_probability": 0.8,
        "_label_Action": 2,
        "_labelIndex": 1,
        "o": [{"v": 1.0, "EventId": "e1"}],
        "Timestamp": "2026-01-02T03:04:05.0000000Z",
        "Version": "1",
        "EventId": "e1",
        "a": [2, 1, 3],
        "p": [0.8, 0.1, 0.1],
        "c": {
            "User": {"country": "NO", "id": "ann"},
            "_multi": [
                {"_tag": "news", "Article": {"topic": "news", "words": 7}},
                {"_tag": "jazz", "Article": {"topic": "jazz", "words": 3}},
                {"_tag": "film", "Article": {"topic": "film", "words": 1}},
            ],
        },
        "VWState": {"m": "x"},
    },
    {
        "_label_cost": 0,
        "_label_probability": 0.1,
        "_label_Action": 3,
        "_labelIndex": 2,
        "Timestamp": "2026-01-02T03:05:05Z",
        "EventId": "e2",
        "a": [3, 2, 1],
        "p": [0.1, 0.8, 0.1],
        "c": {
            "User": {"country": "SE", "id": "bob"},
            "_multi": [{"_tag": "news"}, {"_tag": "jazz"}, {"_tag": "film"}],
        },
    },
]


def written(path: Path, *lines: Any) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def test_a_dsjson_file_of_vowpal_wabbit_is_read(tmp_path: Path) -> None:
    dangling = {"EventId": "e9", "v": 1.0}
    path = written(tmp_path / "vw.json", VW_LINES[0], dangling, VW_LINES[1])
    log = open_interactions(path, user_path="User.id")
    first, second = log.interactions
    assert (first.user, first.chosen, first.probability, first.reward) == ("ann", 1, 0.8, 1.0)
    assert first.chances is not None
    assert first.chances.tolist() == [0.1, 0.8, 0.1]
    assert first.context == {"User.country=NO": 1.0}
    assert first.features is not None
    assert first.features[0] == {"Article.topic=news": 1.0, "Article.words": math.log(8)}
    assert first.at == pytest.approx(1767323045)
    assert (second.user, second.actions, second.features) == ("bob", ("news", "jazz", "film"), None)
    assert log.notes == ("1 lines hold no decision that was shown, and were left out.",)


def test_vowpal_wabbit_reads_the_same_decisions(tmp_path: Path) -> None:
    """The sample is dsjson to Vowpal Wabbit as well: it sees the same costs, actions and probabilities."""
    vowpalwabbit = pytest.importorskip("vowpalwabbit")
    path = written(tmp_path / "vw.dsjson", *VW_LINES)
    made = vowpalwabbit.Workspace("--cb_adf --dsjson --quiet", enable_logging=True)
    labels = []
    for line in path.read_text().splitlines():
        examples = made.parse(line)
        labels += [
            (k - 1, cost.cost, cost.probability)
            for k, example in enumerate(examples)
            for cost in vowpalwabbit.CBLabel.from_example(example).costs
            if k
        ]
        made.finish_example(examples)
    made.finish()
    ours = [(one.chosen, -one.reward, one.probability) for one in open_interactions(path).interactions]
    assert [k for k, *_ in labels] == [k for k, *_ in ours]
    assert np.allclose([rest for _, *rest in labels], [rest for _, *rest in ours])


SLOTS = VW_LINES[0] | {
    "c": VW_LINES[0]["c"] | {"_slots": [{"size": "big"}, {"size": "small"}]},  # type: ignore[operator]
    "_outcomes": [
        {"_label_cost": -1.0, "_a": [1, 0, 2], "_p": [0.8, 0.1, 0.1]},
        {"_label_cost": -0.5, "_a": [2, 0], "_p": [0.4, 0.6]},
    ],
}


def test_each_slot_of_a_dsjson_line_is_a_decision_among_what_was_left(tmp_path: Path) -> None:
    log = open_interactions(written(tmp_path / "a.dsjson", SLOTS))
    first, second = log.interactions
    assert (first.actions, first.chosen, first.probability, first.reward) == (
        ("news", "jazz", "film"),
        1,
        0.8,
        1.0,
    )
    assert (second.actions, second.chosen, second.probability, second.reward) == (
        ("news", "film"),
        1,
        0.4,
        0.5,
    )
    assert second.chances is not None
    assert second.chances.tolist() == [0.6, 0.4]
    assert second.features is not None
    assert "Article.topic=film" in second.features[1]
    assert second.context == {"User.country=NO": 1.0, "User.id=ann": 1.0, "size=small": 1.0}
    assert log.notes == (
        "2 decisions are slots of a larger one; each is evaluated by itself, beside what the other slots showed.",
    )


def test_vowpal_wabbit_reads_the_same_slots(tmp_path: Path) -> None:
    vowpalwabbit = pytest.importorskip("vowpalwabbit")
    made = vowpalwabbit.Workspace("--ccb_explore_adf --dsjson --quiet")
    examples = made.parse(json.dumps(SLOTS))
    theirs = [vowpalwabbit.CCBLabel.from_example(example).outcome for example in examples]
    names = ("news", "jazz", "film")
    told = [(-one.cost, {names[a.action]: a.score for a in one.action_probs}) for one in theirs if one]
    made.finish_example(examples)
    made.finish()
    for ours, (reward, likely) in zip(
        open_interactions(written(tmp_path / "a.dsjson", SLOTS)).interactions, told, strict=True
    ):
        assert ours.reward == reward
        assert ours.chances is not None
        assert dict(zip(ours.actions, ours.chances.tolist(), strict=True)) == pytest.approx(likely)


def test_personalizers_user_stands_in_a_list_of_features(tmp_path: Path) -> None:
    line = VW_LINES[1] | {
        "c": {"FromUrl": [{"device": "phone"}, {"user": {"id": "ann"}}], "_multi": [{}, {}, {}]}
    }
    [one] = open_interactions(written(tmp_path / "a.dsjson", line)).interactions
    assert (one.user, one.actions) == ("ann", ("0", "1", "2"))
    assert one.context == {"FromUrl.device=phone": 1.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("not json", r"line 1 of .* is not a decision in dsjson: Expecting value"),
        ({"p": [0.5, 0.1, 0.1]}, "line 1 .* sum to 0.7, expected 1"),
        ({"a": [1, 2], "p": [0.5, 0.5]}, "a and p do not list the 3 actions"),
        ({"_label_probability": 0}, "with probability 0.0, expected above 0"),
        ({"_label_probability": 0.5}, "with probability 0.5, but lists it with 0.1"),
        ({"_label_cost": 3}, r"has the reward -3.0, expected a number in \[-1, 1\]"),
        ({"_label_Action": 7}, "line 1 .* chose action 7 of 3"),
        (
            {"_outcomes": [{"_a": [7], "_p": [1.0], "_label_cost": 0}]},
            "_a and _p of slot 0 do not list actions",
        ),
        ({"c": {"_multi": [{"_tag": "x"}, {"_tag": "x"}, {}]}}, "lists the action 'x' twice"),
        ({"_skipLearn": True}, "has no decision in dsjson"),
    ],
)
def test_dsjson_that_cannot_be_evaluated_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    line = change if isinstance(change, str) else VW_LINES[1] | change
    with pytest.raises(FileError, match=message):
        open_interactions(written(tmp_path / "a.dsjson", line))


# obp's format


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pscore": None}, "has no 'pscore'; bandit feedback has action, reward, pscore"),
        ({"pscore": [0.5, 0.0]}, "round 1 of bandit feedback showed its action with probability 0.0"),
        ({"reward": [1, 5]}, "round 1 of bandit feedback has the reward 5.0"),
        ({"reward": [1]}, r"reward is int64 \(1,\), expected finite numbers \(2,\)"),
        ({"action": [0.5, 1.0]}, "action is float64"),
        ({"n_actions": 1}, "round 1 of bandit feedback chose action 2 of 1"),
    ],
)
def test_a_bandit_feedback_that_cannot_be_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(FileError, match=message):
        open_interactions({"action": [0, 1], "reward": [1, 0], "pscore": [0.5, 0.5]} | change)


def test_positions_of_a_bandit_feedback_are_part_of_the_context(tmp_path: Path) -> None:
    made: dict[str, Any] = {
        "action": np.array([0, 1]),
        "reward": np.array([1, 0]),
        "pscore": np.array([0.5, 0.25]),
        "position": np.array([0, 2]),
        "pi_b": np.array([[[0.5, 0, 0], [0.5, 1, 1]], [[0, 0, 0.75], [1, 1, 0.25]]]),
    }
    np.savez(tmp_path / "log.npz", **made)
    log = open_interactions(tmp_path / "log.npz")
    assert isinstance(log, InteractionLog)
    assert [dict(one.context) for one in log.interactions] == [{"position=0": 1.0}, {"position=2": 1.0}]
    chances = log.interactions[1].chances
    assert chances is not None
    assert chances.tolist() == [0.75, 0.25]
    (tmp_path / "bad.npz").write_bytes(b"PK")
    with pytest.raises(FileError, match="cannot be read as arrays"):
        open_interactions(tmp_path / "bad.npz")


# The other commands


@pytest.mark.parametrize("kind", ["parquet", "dsjson"])
def test_compare_and_advise_take_the_services_export_as_it_is(tmp_path: Path, kind: str) -> None:
    from coterie import open_log
    from coterie.advice.records import read_log

    path = kept(lived(), tmp_path)[kind]
    log = open_log(path)
    records = log.every_record()
    found = open_interactions(path).interactions
    assert [log.items[k] for k in records.items] == [one.actions[one.chosen] for one in found]
    assert records.payoffs.tolist() == [one.reward for one in found]
    assert records.users.tolist() == [one.user for one in found]
    assert read_log(path).payoffs.tolist() == [one.reward for one in found]


def test_the_commands_run_on_an_export(tmp_path: Path) -> None:
    paths = kept(lived(), tmp_path)
    out = str(tmp_path / "out")
    told = run.invoke(
        app,
        f"compare {paths['parquet']} --policies random --runs 1 --workers 1 --out {out} --json".split(),
    )
    assert told.exit_code == 0, told.output
    told = run.invoke(app, ["evaluate", str(paths["db"]), "--out", out, "--policies", "logged,uniform"])
    assert told.exit_code == 0, told.output
    assert "60 decisions" in told.stdout
