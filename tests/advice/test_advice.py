"""Advice on a log: planted answers are found, files are read or refused, and the page stands alone."""

import json
from collections.abc import Iterable
from itertools import product
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from coterie import Hierarchical
from coterie.advice.advice import advise
from coterie.advice.distances import measure_distances
from coterie.advice.fitted import Fitted
from coterie.advice.groups import count_groups, split_line
from coterie.advice.page import write_advice
from coterie.advice.ranking import HeldOutLearner, Standing, rank_policies, recommend
from coterie.advice.records import Records, make_records, read_log
from coterie.advice.sharing import concordance, measure_sharing
from coterie.cli.app import app
from coterie.data import DenseWorld, OneHotWorld, Round
from coterie.errors import FileError, ParameterError
from coterie.experiments import parse_spec


def strangers(n_users: int = 120, per_user: int = 40, d: int = 5) -> Records:
    """Users whose tastes have nothing to do with each other."""
    rng = np.random.default_rng(0)
    tastes = rng.standard_normal((n_users, d))
    tastes /= np.linalg.norm(tastes, axis=1, keepdims=True)
    vectors = rng.standard_normal((400, d))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    users = np.repeat(np.arange(n_users), per_user)
    items = rng.integers(400, size=len(users))
    paid = np.clip(
        np.einsum("rf,rf->r", tastes[users], vectors[items]) + rng.uniform(-0.1, 0.1, len(users)), -1, 1
    )
    return make_records(users.tolist(), items, paid, vectors)


def served_at_random(rounds: Iterable[Round]) -> Records:
    """Return the records of a log of uniformly random choices."""
    rng = np.random.default_rng(0)
    users, contexts, payoffs = [], [], []
    for sent in rounds:
        k = int(rng.integers(len(sent.contexts)))
        users.append(sent.user)
        contexts.append(sent.contexts[k])
        payoffs.append(float(sent.payoffs[k]))
    if isinstance(contexts[0], np.ndarray):
        vectors, items = np.unique(np.array(contexts), axis=0, return_inverse=True)
        return make_records(users, items.ravel(), payoffs, vectors)
    return make_records(users, contexts, payoffs)


def one_hot(clusters: int, gap: float, n_rounds: int = 4000) -> Records:
    world = OneHotWorld(n_users=80, n_items=10, clusters_per_family=clusters, gap=gap, noise=0.1)
    return served_at_random(world.rounds(n_rounds))


def test_concordance_by_hand() -> None:
    """Payoffs 0, 1, 1: pairs (2nd, 1st) and (3rd, 1st). Predictions 1, 2, 0 get the first right; equal is half."""
    found = concordance(np.array([[1.0, 2.0, 0.0], [3.0, 3.0, 3.0]]), np.array([0.0, 1.0, 1.0]))
    assert found.tolist() == [0.5, 0.5]
    assert concordance(np.array([[0.1, 0.2]]), np.array([0.0, 1.0])).tolist() == [1.0]


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.floats(-1, 1), min_size=1, max_size=6, unique=True),
    k=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_groups_on_a_line_equal_brute_force(values: list[float], k: int, seed: int) -> None:
    value, weight = np.array(values), np.random.default_rng(seed).uniform(0.1, 2, len(values))
    k = min(k, len(values))

    def cost(group: np.ndarray) -> float:
        total = 0.0
        for g in set(group.tolist()):
            mean = np.average(value[group == g], weights=weight[group == g])
            total += float((weight * (value - mean) ** 2)[group == g].sum())
        return total

    best = min(cost(np.array(g)) for g in product(range(k), repeat=len(values)) if len(set(g)) == k)
    found = split_line(value, weight, k)
    assert len(set(found.tolist())) == k
    assert cost(found) == pytest.approx(best, abs=1e-9)


def test_models_equal_each_users_own_ridge() -> None:
    records = strangers(n_users=5, per_user=7)
    fitted = Fitted(records).add(np.arange(20)).add(np.arange(20, 35))
    fitted.solve()
    assert records.vectors is not None
    for user in range(5):
        X, y = records.vectors[records.items[records.users == user]], records.payoffs[records.users == user]
        inverse = np.linalg.inv(np.eye(5) + X.T @ X)
        assert fitted.weights[user] == pytest.approx(inverse @ X.T @ y)
        x = records.vectors[3]
        assert fitted.spread(np.array([3]), np.array([user]))[0, 0] == pytest.approx(np.sqrt(x @ inverse @ x))
    X, y = records.vectors[records.items], records.payoffs
    assert fitted.everyone() == pytest.approx(np.linalg.solve(np.eye(5) + X.T @ X, X.T @ y))


@pytest.mark.parametrize(("clusters", "gap"), [(1, 0.3), (2, 0.5), (4, 0.3)])
def test_planted_groups_are_counted(clusters: int, gap: float) -> None:
    found = count_groups(one_hot(clusters, gap))
    assert found.number == pytest.approx(clusters, abs=0.6)
    assert found.low <= found.number <= found.high
    assert found.gap >= (0.8 * gap if clusters > 1 else 0)


def test_planted_groups_are_counted_with_features() -> None:
    world = DenseWorld(n_users=80, clusters_per_family=2)
    found = count_groups(served_at_random(world.rounds(4000)), splits=2)
    assert found.number == pytest.approx(2, abs=0.4)
    assert 0.25 < found.gap < 0.8


def test_sharing_pays_where_users_are_alike() -> None:
    found = measure_sharing(one_hot(1, 0.3))
    assert found.verdict == "pays"
    assert found.best == "everyone"
    assert found.gain > 0.1


def test_where_users_are_alike_a_lead_too_small_to_matter_changes_nothing() -> None:
    """One regression for all is right here; Hierarchical comes within 1 in 100 of it."""
    advice = advise(one_hot(1, 0.3))
    score = {one.policy: one.score for one in advice.sharing.standings}
    assert score["linucb-multiple"] + 0.1 < score["hierarchical"]
    assert score["hierarchical"] == pytest.approx(score["linucb-single"], abs=0.01)
    assert advice.settings == {"policy": "hierarchical"}
    assert "too small to matter" in advice.because()


def test_sharing_pays_where_users_form_groups() -> None:
    world = OneHotWorld(n_users=100, n_items=12, n_families=3, gap=0.5)
    advice = advise(served_at_random(world.rounds(3000)))
    assert advice.sharing.verdict == "pays"
    assert advice.sharing.standings[0].policy == "hierarchical"
    assert advice.settings == {"policy": "hierarchical"}
    assert parse_spec(advice.command()).name == "hierarchical"
    assert advice.words()[0].endswith("users should share feedback, which is likely to pay here.")
    assert advice.because() in advice.words()
    assert advice.because().endswith("So start with hierarchical, which has nothing to tune.")
    assert advice.code() == "Hierarchical(one_hot=True)"


def test_sharing_does_not_pay_among_strangers() -> None:
    advice = advise(strangers())
    assert advice.sharing.verdict == "does not pay"
    assert advice.settings == {"policy": "linucb", "shared": False, "alpha": 0.1}
    assert advice.code() == "LinUCB(n_features=5, shared=False, alpha=0.1)"
    assert parse_spec(advice.command()).parameters == {"shared": False, "alpha": 0.1}
    assert "linucb-multiple is clearly ahead of hierarchical" in advice.because()
    assert advice.distances.ratio > 2


def test_where_nothing_is_to_be_learned_the_answer_says_so_and_nothing_contradicts_it() -> None:
    rng = np.random.default_rng(0)
    clicks = (rng.random(2400) < 0.5).astype(float)
    advice = advise(make_records(rng.integers(60, size=2400), rng.integers(10, size=2400), clicks))
    assert all(one.score == pytest.approx(0.5, abs=0.03) for one in advice.sharing.standings)
    assert advice.words()[0] == (
        "Start with hierarchical, but expect little: this log does not show what users like."
    )
    assert "None is clearly better than a coin" in advice.because()
    assert advice.code() == "Hierarchical(one_hot=True)"


def test_groups_by_how_much_users_are_paid_do_not_contradict_the_answer() -> None:
    """Half of the users are paid often, half seldom: groups for every item, and no item is better than another."""
    rng = np.random.default_rng(1)
    users, items = rng.integers(60, size=2400), rng.integers(4, size=2400)
    paid = rng.random(2400) < np.where(users % 2, 0.8, 0.2)
    advice = advise(make_records(users, items, paid.astype(float)))
    assert advice.groups is not None
    assert advice.groups.number > 1.5
    assert advice.words()[0].startswith("Start with hierarchical, but expect little")
    assert not any("groups" in line or "differ" in line for line in advice.words())


def standing(policy: str, score: float, lead: float, lead_error: float = 0.001) -> Standing:
    return Standing(policy, np.array([score]), score, 0.01, lead, lead_error)


def test_what_is_recommended_by_hand() -> None:
    """A rival has to lead by 1 in 100 and by 2.4 standard errors; of two that do, the one further ahead is named."""
    ours = standing("hierarchical", 0.7, 0.0, 0.0)
    assert recommend([standing("cab", 0.72, 0.02), ours]) == "cab"
    assert recommend([standing("cab", 0.72, 0.02, 0.01), ours]) == "hierarchical"  # 2 standard errors
    assert recommend([standing("cab", 0.709, 0.009), ours]) == "hierarchical"
    assert (
        recommend([standing("linucb-single", 0.73, 0.03), standing("cab", 0.72, 0.02), ours])
        == "linucb-single"
    )
    assert recommend([standing("hierarchical", 0.52, 0.0, 0.0)]) == "none"  # 2 standard errors above a coin


def test_standings_by_hand() -> None:
    """User 0 is asked about twice and counts once: hierarchical has 0.6 and 0.8, linucb-multiple 0.5 and 0.5."""
    asked = np.array(
        [[[0.5], [0.4], [0.5], [0.5]], [[0.7], [0.6], [0.5], [0.5]], [[0.8], [0.5], [0.5], [0.5]]]
    )
    first, *rest = rank_policies(asked, np.array([0, 0, 1]))
    assert first.policy == "hierarchical"
    assert first.score == pytest.approx(0.7)
    assert first.error == pytest.approx(np.std([0.6, 0.8], ddof=1) / np.sqrt(2))
    assert (first.lead, first.lead_error) == (0.0, 0.0)
    assert rest[0].lead == pytest.approx(np.mean([-0.1, -0.3]))
    assert first.scores.tolist() == pytest.approx([2 / 3])


@pytest.mark.parametrize("featured", [False, True])
def test_a_learner_predicts_what_the_policy_would(featured: bool) -> None:
    records = strangers(n_users=4, per_user=5) if featured else one_hot(2, 0.5, 40)
    learner = HeldOutLearner(records)
    learner.add(np.arange(12))
    learner.add(np.arange(0))
    policy = Hierarchical(n_features=5) if featured else Hierarchical(one_hot=True)
    for row in range(12):
        item = int(records.items[row])
        context = records.vectors[item] if records.vectors is not None else item
        policy.learn(int(records.users[row]), context, float(records.payoffs[row]))
    shown = records.vectors[:3] if records.vectors is not None else [0, 1, 2]
    found = learner.predict(int(records.users[0]), np.arange(3))
    assert found == pytest.approx(policy.decide(int(records.users[0]), shown).estimate)


def test_distances_by_hand() -> None:
    """Without features, user a was paid 1 for item x twice, b 1 for item y twice: w_a = (2/3, 0), w_b = (0, 2/3)."""
    found = measure_distances(make_records("aabb", "xxyy", [1.0, 1.0, 1.0, 1.0]))
    assert found.mean == pytest.approx(2 / 3 * np.sqrt(2))
    assert found.paid == pytest.approx(found.mean)
    assert found.within == 0
    assert found.between == pytest.approx(np.sqrt(2) / 2)  # halves: one record each, w = 1/2


def test_a_user_alone_is_as_far_from_itself_as_from_its_twins() -> None:
    found = measure_distances(one_hot(1, 0.3))
    assert found.ratio == pytest.approx(1, abs=0.1)


def write(path: Path, table: pl.DataFrame) -> Path:
    (table.write_csv if path.suffix == ".csv" else table.write_parquet)(path)
    return path


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_logs_are_read_with_items_or_features(tmp_path: Path, suffix: str) -> None:
    table = pl.DataFrame({"user": ["a", "b", "a"], "item": [7, 8, 7], "payoff": [1, 0, 1]})
    plain = read_log(write(tmp_path / f"plain{suffix}", table))
    assert plain.one_hot
    assert (plain.n_users, plain.n_items, plain.items.tolist()) == (2, 2, [0, 1, 0])
    table = table.with_columns(feature_0=pl.Series([0.0, 3.0, 0.0]), feature_1=pl.Series([1.0, 4.0, 1.0]))
    featured = read_log(write(tmp_path / f"featured{suffix}", table))
    assert featured.vectors is not None
    assert featured.vectors[featured.items[1]].tolist() == pytest.approx([0.6, 0.8])
    assert "divided by 5" in featured.notes[0]


def test_a_column_of_lists_is_features(tmp_path: Path) -> None:
    table = pl.DataFrame({"user": ["a", "b"], "payoff": [1.0, 0.0], "features": [[0.5, 0.5], [0.1, 0.0]]})
    found = read_log(write(tmp_path / "log.parquet", table))
    assert found.vectors is not None
    assert found.vectors.shape == (2, 2)


def test_many_features_are_projected() -> None:
    rng = np.random.default_rng(0)
    found = make_records("abc", [0, 1, 2], [0, 1, 0], rng.standard_normal((3, 60)) / 20)
    assert found.vectors is not None
    assert found.vectors.shape == (3, 40)
    assert "100%" in found.notes[0]


@pytest.mark.parametrize(
    ("name", "table", "message"),
    [
        ("log.txt", {"user": [1]}, "neither .csv nor .parquet"),
        ("log.csv", {"user": [1], "payoff": [1]}, "no column 'item'"),
        ("log.csv", {"user": [1], "item": [1]}, "no column 'payoff'"),
        ("log.csv", {"user": [1], "item": [1], "payoff": [2]}, "payoff=2; expected all three"),
        (
            "log.csv",
            {"user": [1], "item": [1], "payoff": ["x"]},
            "record 1 .line 2.: payoff is 'x', expected a number",
        ),
        ("log.csv", {"user": [1, None], "item": [1, 2], "payoff": [0, 1]}, "record 2 .line 3.: user=None"),
        ("log.parquet", {"user": [1], "payoff": [0], "feature": [float("nan")]}, "NaN"),
    ],
)
def test_logs_that_cannot_be_read_are_refused(
    tmp_path: Path, name: str, table: dict[str, list[object]], message: str
) -> None:
    path = tmp_path / name
    if path.suffix == ".txt":
        path.write_text("user")
    else:
        write(path, pl.DataFrame(table))
    with pytest.raises(FileError, match=message):
        read_log(path)


def test_a_log_that_is_not_there_is_named() -> None:
    with pytest.raises(FileError, match=r"no file .*gone\.csv"):
        read_log("gone.csv")


def test_too_little_data_is_said_plainly() -> None:
    with pytest.raises(ParameterError, match="at least 2"):
        measure_sharing(make_records("abc", "xyz", [0, 1, 0]))
    with pytest.raises(ParameterError, match="too few users"):
        measure_sharing(make_records("aabbcc", "xyxyxy", [0, 0, 0, 0, 0, 0]))
    assert advise_or_none() is None


def advise_or_none() -> object:
    """Users who never see an item twice have no halves to count groups on: the rest is still answered."""
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(30), 8)
    items = np.concatenate([rng.permutation(60)[:8] for _ in range(30)])
    return advise(make_records(users.tolist(), items.tolist(), rng.integers(2, size=240))).groups


def test_the_page_stands_alone_and_escapes_names(tmp_path: Path) -> None:
    advice = advise(one_hot(2, 0.5, 1500), name="<script>alert(1)</script>")
    text = write_advice(advice, tmp_path / "page.html").read_text()
    assert "<script" not in text
    assert "http://" not in text
    assert "https://" not in text
    assert text.count("<svg") == 3
    assert "Start" in text or "start" in text


def test_advise_from_the_command_line(tmp_path: Path) -> None:
    records = one_hot(2, 0.5, 1500)
    table = pl.DataFrame({"user": records.users, "item": records.items, "payoff": records.payoffs})
    log = write(tmp_path / "log.parquet", table)
    out = str(tmp_path / "out")
    shown = CliRunner().invoke(app, ["advise", str(log), "--out", out, "--json"])
    assert shown.exit_code == 0, shown.output
    numbers = json.loads(shown.stdout)
    assert numbers["users"] == 80
    assert numbers["records"] == 1500
    assert json.loads((tmp_path / "out" / "advice.json").read_text()) == numbers
    assert numbers["recommended"]["policy"] == numbers["settings"]["policy"] == "hierarchical"
    assert {one["policy"] for one in numbers["policies"]} == {
        "hierarchical",
        "cab",
        "linucb-single",
        "linucb-multiple",
    }
    plain = CliRunner().invoke(app, ["advise", str(log), "--out", out])
    assert plain.stdout.startswith("Start with ")
    assert "Next: `coterie compare " in plain.stdout


def test_theory_from_the_command_line(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    shown = CliRunner().invoke(app, ["theory", "watch", "dense", "--rounds", "40", "--out", out, "--json"])
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["rounds"] == 40
    shown = CliRunner().invoke(app, ["theory", "lemmas", "--worlds", "2", "--rounds", "10"])
    assert shown.exit_code == 0, shown.output
    assert "Theorem 1" in shown.stdout


def test_theory_refuses_unknown_worlds() -> None:
    shown = CliRunner().invoke(app, ["theory", "watch", "nowhere"])
    assert isinstance(shown.exception, ParameterError)
