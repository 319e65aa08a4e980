"""Learning a log as it is, forgetting items, probabilities, and how policies introduce themselves."""

import doctest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import coterie
import coterie.errors
import coterie.policies.base.policy
from coterie import CAB, CLUB, COFIBA, Batch, LinUCB, Policy, Random, open_log
from coterie.errors import ContextError, CoterieError, ParameterError, PayoffError, UserError
from tests.policies.test_contract import D, candidates, each_policy, fingerprint, play


def records(one_hot: bool, n: int = 60) -> tuple[list[str], Any, list[float]]:
    rng = np.random.default_rng(0)
    users = [f"user {k}" for k in rng.integers(6, size=n)]
    contexts = [candidates(rng, one_hot)[0] for _ in range(n)]
    return (
        users,
        contexts if one_hot else np.array(contexts),
        np.round(rng.uniform(-1, 1, size=n), 1).tolist(),
    )


@each_policy
def test_learn_many_learns_what_learn_does_one_by_one(make: Callable[[], Policy], one_hot: bool) -> None:
    users, contexts, payoffs = records(one_hot)
    many, single = make(), make()
    updates = sum(single.learn(*record) for record in zip(users, contexts, payoffs, strict=True))
    assert many.learn_many(users, contexts, payoffs) == updates
    assert many.learned == single.learned == 60
    shown = candidates(np.random.default_rng(1), one_hot)
    for user in ("user 0", "a stranger"):
        told, expected = many.explain(user, shown), single.explain(user, shown)
        assert told.score == pytest.approx(expected.score, abs=1e-9)
        assert told.members.tolist() == expected.members.tolist()
    assert many.learn_many([], [], []) == 0
    assert many.learned == 60


@each_policy
def test_bad_records_are_named_and_nothing_is_learned(make: Callable[[], Policy], one_hot: bool) -> None:
    users, contexts, payoffs = records(one_hot)
    policy = make()
    play(policy, one_hot, 20, seed=1)
    before = fingerprint(policy)
    far: Any = [*contexts[:-1], ["no id"]] if one_hot else np.vstack([contexts[:-1], np.full(D, np.inf)])
    bad: list[tuple[type[CoterieError], str, tuple[Any, Any, Any]]] = [
        (PayoffError, "payoff is 2", (users, contexts, [*payoffs[:-1], 2 * policy.largest_payoff])),
        (PayoffError, "payoffs must be numbers", (users, contexts, [*payoffs[:-1], "yes"])),
        (UserError, "not equal to itself", ([*users[:-1], float("nan")], contexts, payoffs)),
        (ContextError, "60 users, 60 contexts and 59 payoffs", (users, contexts, payoffs[:-1])),
        (ContextError, "unhashable|expected numbers" if one_hot else "infinity", (users, far, payoffs)),
        (ContextError, "users is 3, expected a sequence", (3, contexts, payoffs)),
        (UserError, "users is a set, which has no order", (set(range(60)), contexts, payoffs)),
        (UserError, "users hold masked", (np.ma.masked_equal(np.arange(60), 5), contexts, payoffs)),
        (PayoffError, "payoffs hold masked", (users, contexts, np.ma.masked_equal(np.arange(60) % 2, 1))),
        (PayoffError, "payoffs hold complex", (users, contexts, np.full(60, 0.5j))),
    ]
    for error, message, given in bad:
        with pytest.raises(error, match=message):
            policy.learn_many(*given)
    shown = [contexts[:3], contexts[3:5]]
    for call in (policy.choose_many, policy.decide_many):
        with pytest.raises(ContextError, match="there are 3 users and 2 lists of candidates; give one list"):
            call(["ann", "bob", "carl"], shown)
        with pytest.raises(UserError, match="users is a set"):
            call({"ann", "bob"}, shown)  # type: ignore[arg-type]
    lists, served = np.array([[0, 1], [1, 2]]), np.zeros(2, dtype=np.int64)
    for name, batch in (
        ("candidates", Batch(["ann", "bob"], np.ma.masked_equal(lists, 2), contexts, np.zeros(2), served)),
        ("served", Batch(["ann", "bob"], lists, contexts, np.zeros(2), np.ma.masked_equal(served, 0))),
    ):
        with pytest.raises(ContextError, match=f"{name} hold masked values"):
            policy.run(batch)
    assert fingerprint(policy) == before


def test_fit_takes_every_record_of_a_log_whatever_the_table(tmp_path: Path) -> None:
    """Two thirds of the log show item a, so that balanced lists leave some out; fit leaves out none."""
    columns: dict[str, Any] = {
        "user": [f"u{t % 5}" for t in range(300)],
        "item": [("a", "a", "b", "a", "a", "c")[t % 6] for t in range(300)],
        "payoff": [float(t % 4 == 0) for t in range(300)],
    }
    expected = CAB(one_hot=True)
    expected.learn_many(*columns.values())
    frame = pl.DataFrame(columns)
    frame.write_csv(tmp_path / "log.csv")
    log = open_log(tmp_path / "log.csv")
    assert log.n_rounds < 300
    for given in (log, frame, columns, pa.table(columns)):
        policy = CAB(one_hot=True)
        assert policy.fit(given) is policy
        assert fingerprint(policy) == fingerprint(expected)
    vectors = [[0.6, 0.0] if item == "a" else [0.0, 0.8] for item in columns["item"]]
    featured = pl.DataFrame({**columns, "features": vectors})
    assert LinUCB(n_features=2).fit(featured).learned == 300
    featured.write_parquet(tmp_path / "featured.parquet")
    assert LinUCB(n_features=2).fit(open_log(tmp_path / "featured.parquet")).learned == 300
    with pytest.raises(ContextError, match="this policy knows items by features, those of the log have ids"):
        LinUCB(n_features=2).fit(log)


@pytest.mark.parametrize("log", ["log.csv", 3, {"user": ["ann"], "payoff": [1]}])
def test_what_is_no_log_is_refused(log: Any) -> None:
    with pytest.raises(ParameterError, match=r"fit takes a log: what open_log.* returns, or a table"):
        CAB(one_hot=True).fit(log)


@each_policy
def test_an_item_that_is_dropped_is_as_unknown_as_one_that_never_came(
    make: Callable[[], Policy], one_hot: bool
) -> None:
    policy = make()
    play(policy, one_hot, 80, seed=2)
    before = fingerprint(policy)
    forgets = bool(policy.item_tensors) or type(policy).drop_item is not Policy.drop_item
    if not (one_hot and forgets):
        with pytest.raises(ParameterError, match="cannot forget an item"):
            policy.drop_item("item 3")
        assert fingerprint(policy) == before
        return
    told = policy.decide("user 1", ["item 5"])
    with pytest.raises(ContextError, match="is unhashable"):
        policy.drop_item([])  # type: ignore[arg-type]
    policy.drop_item("item 3")
    for user in (*policy.users, "a stranger"):
        gone, never = (policy.decide(user, [item]) for item in ("item 3", "never"))
        assert gone.estimate.tolist() == never.estimate.tolist() == [0.0]
        assert gone.near_width == pytest.approx(never.near_width)
    assert policy.decide("user 1", ["item 5"]).estimate == pytest.approx(told.estimate)
    assert not any(b"item 3" in tensor.tobytes() for tensor in policy.tensors().values())
    if policy.name != "random":
        with pytest.raises(ContextError, match="item 'item 3' is not known, so cannot be dropped"):
            policy.drop_item("item 3")
    play(policy, one_hot, 40, seed=3)
    again = type(policy)(**{k: v for k, v in policy.parameters.items() if k not in policy.in_tensors})
    again.restore(policy.tensors())  # what it wrote is sound


@each_policy
def test_probabilities_say_how_likely_each_candidate_is(make: Callable[[], Policy], one_hot: bool) -> None:
    policy = make()
    play(policy, one_hot, 40, seed=4)
    shown = candidates(np.random.default_rng(5), one_hot)
    told = policy.explain("user 1", shown)
    assert told.probability.sum() == pytest.approx(1)
    assert told.probability[told.choice] == told.probability.max()
    assert [row["probability"] for row in told.rows()] == told.probability.tolist()
    if isinstance(policy, Random):
        assert told.probability.tolist() == [0.25] * 4


def test_probabilities_of_draws_are_those_of_the_gaussian() -> None:
    """Two items nobody was shown: each comes first half of the time."""
    told = LinUCB(one_hot=True, thompson=True, alpha=1.0).explain("ann", ["a", "b"])
    assert told.probability == pytest.approx([0.5, 0.5])


def test_policies_introduce_themselves() -> None:
    policy = CLUB(n_features=3, alpha=0.3)
    assert repr(policy) == "CLUB(n_features=3, alpha=0.3), 0 users, 0 payoffs learned"
    policy.learn("ann", [0.1, 0.2, 0.3], 1.0)
    assert repr(policy) == "CLUB(n_features=3, alpha=0.3), 1 user, 1 payoff learned"
    assert repr(COFIBA(one_hot=True)) == "COFIBA(one_hot=True), 0 users, 0 payoffs learned"

    def shrinking(t: int) -> float:
        return 1 / t

    assert repr(LinUCB(one_hot=True, alpha=shrinking)).startswith("LinUCB(one_hot=True, alpha=shrinking), ")


@each_policy
def test_every_policy_has_a_repr_of_one_line(make: Callable[[], Policy], one_hot: bool) -> None:
    policy = make()
    play(policy, one_hot, 10, seed=6)
    assert repr(policy).startswith(f"{type(policy).__name__}(")
    assert "10 payoffs learned" in repr(policy)
    assert len(repr(policy)) < 150


def test_what_users_need_is_one_import_away() -> None:
    for name in ("Batch", "Decision", "replay", "open_log", "load", "Policy"):
        assert getattr(coterie, name).__name__ == name
        assert name in dir(coterie)
    errors = [kind for kind in vars(coterie.errors).values() if isinstance(kind, type)]
    for kind in errors:
        assert getattr(coterie, kind.__name__) is kind
        assert kind.__name__ in dir(coterie)


def test_the_examples_of_the_base_run() -> None:
    assert doctest.testmod(coterie.policies.base.policy).failed == 0
