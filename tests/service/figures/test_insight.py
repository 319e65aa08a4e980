"""What the page is drawn from: averages, curves, quantiles, the tail of the log, and who is alike."""

import doctest
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from litestar.testing import TestClient

from coterie.policies import CAB, LinUCB
from coterie.service.core.events import Event
from coterie.service.core.question import Action, Question
from coterie.service.figures import insight
from coterie.service.figures.insight import Place, Tail
from coterie.service.figures.statistics import MINUTE, Minute, Statistics
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.serve import make_app
from coterie.service.settings import Config, Settings
from tests.service.helpers import START, Clock, ask, bandit, decide, settings_of, with_coordinator


def event(probability: float, baseline: bool, choices: int = 2) -> Event:
    return Event("e", 0, 0, "a", None, 0, 0, "rewarded", b"", probability, choices, baseline)


def test_averages_by_hand() -> None:
    """The policy is worth 1, the baseline 0.5 where the policy would not choose it.

    56 times the policy's choice (p = 0.95, payoff 1), 24 times the policy's choice that is the baseline too, 40
    times the baseline by chance (p = 0.05, payoff 0.5). Baseline: weights 24 · 1/0.95 = 25.26 and 40 · 20 = 800, so
    (25.26 · 1 + 800 · 0.5) / 825.26 = 0.5153, worth 825.26² / (24/0.95² + 40 · 400) = 42.5 decisions. Uniform:
    weights 80/1.9 = 42.11 and 400; (42.11 · 1 + 400 · 0.5) / 442.11 = 0.5476.
    """
    statistics = Statistics()
    for k in range(80):
        statistics.learned(START, event(0.95, k < 24), 1.0, 1)
    for _ in range(40):
        statistics.learned(START, event(0.05, True), 0.5, 3)
    found = insight.point(statistics.total)
    assert found.payoff == pytest.approx((80 + 20) / 120)
    assert found.baseline == pytest.approx(0.5153, abs=1e-4)
    assert found.baseline_worth == pytest.approx(42.5, abs=0.01)
    assert found.uniform == pytest.approx(0.5476, abs=1e-4)
    assert found.share_rate == pytest.approx(80 / 200)


def test_an_estimate_from_too_few_decisions_is_not_shown() -> None:
    statistics = Statistics()
    for _ in range(insight.ENOUGH - 1):
        statistics.learned(START, event(0.05, True), 1.0, 1)
    found = insight.point(statistics.total)
    assert found.payoff == 1.0
    assert found.baseline is None


def minutes(*worth: int) -> list[Minute]:
    """Return minutes with so many baseline decisions of weight 1 and payoff 1 each."""
    found = []
    for k, n in enumerate(worth):
        statistics = Statistics()
        for _ in range(n):
            statistics.learned(START + k * MINUTE, event(1.0, True, choices=1), 1.0, 1)
        found.append(statistics.minutes[0])
    return found


def test_a_point_looks_back_until_it_has_enough() -> None:
    rows = minutes(20, 20, 40)
    found = insight.curve(rows, START + 2 * MINUTE, 60)
    assert [point.baseline_worth for point in found] == [20, 40, 40]
    assert [point.baseline for point in found] == [None, 1.0, 1.0]
    assert [point.learned for point in found] == [20, 20, 40]


@given(st.integers(1, 10_080), st.lists(st.integers(0, 10_079), max_size=50, unique=True))
def test_a_curve_is_short_and_complete(span: int, ago: list[int]) -> None:
    now = START + 17
    rows = [Minute(now - now % MINUTE - k * MINUTE, decisions=1) for k in sorted(ago, reverse=True)]
    found = insight.curve(rows, now, span)
    assert len(found) <= insight.POINTS
    assert sum(point.decisions for point in found) >= sum(k < span - span // insight.POINTS - 1 for k in ago)
    assert [point.start for point in found] == sorted(point.start for point in found)


@given(st.lists(st.floats(0.0001, 20), min_size=1, max_size=50), st.sampled_from([0.5, 0.9, 0.99]))
@example([1.0, 0.0078125], 0.5)  # 0.001 + 0.009 is more than 0.01
def test_a_quantile_lies_in_the_right_bucket(seconds: list[float], share: float) -> None:
    limits = [0.001, 0.01, 0.1, 1.0, 10.0, math.inf]
    bounds = [(limit, float(sum(s <= limit for s in seconds))) for limit in limits]
    found = insight.quantile(bounds, share)
    true = sorted(seconds)[math.ceil(share * len(seconds)) - 1]
    upper = next(limit for limit in limits if true <= limit)
    lower = max([0.0, *(limit for limit in limits if limit < true)])
    assert found is not None
    assert lower <= found <= upper


def test_there_is_no_quantile_of_nothing() -> None:
    assert insight.quantile([], 0.5) is None
    assert insight.quantile([(1.0, 0.0), (math.inf, 0.0)], 0.5) is None


def test_the_docstrings_examples_run() -> None:
    assert doctest.testmod(insight).failed == 0


def test_the_tail_follows_the_log_and_forgets_with_it(tmp_path: Path) -> None:
    async def work(coordinator: Any) -> None:
        tail = Tail()
        await coordinator.rank(ask("e1", "ann"))
        await coordinator.reward("e1", 0.5)
        await coordinator.rank(ask("e2", "bob"))
        tail.follow(coordinator.store)
        assert [(made.event, made.reward) for made in tail.of(coordinator.bandit)] == [
            ("e2", None),
            ("e1", 0.5),
        ]
        assert tail.of(coordinator.bandit)[0].members == 1  # ann is surer, and elsewhere
        await coordinator.reward("e2", 1.0)
        tail.follow(coordinator.store)
        assert tail.of(coordinator.bandit)[0].reward == 1.0
        await coordinator.forget("bob")
        tail.follow(coordinator.store)
        assert [made.event for made in tail.of(coordinator.bandit)] == ["e1"]
        assert [made.event for made in tail.decisions] == ["e1"]

    with_coordinator(settings_of(tmp_path / "log.db", Config(policy="cab")), work, Clock())


def test_the_tail_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(insight, "LATEST", 4)

    async def work(coordinator: Any) -> None:
        tail = Tail()
        for k in range(30):
            await coordinator.rank(ask(f"e{k}"))
            if k % 7 == 0:
                tail.follow(coordinator.store)
        tail.follow(coordinator.store)
        assert [made.event for made in tail.decisions] == ["e26", "e27", "e28", "e29"]
        assert set(tail._by_event) == {"e26", "e27", "e28", "e29"}

    with_coordinator(settings_of(tmp_path / "log.db"), work, Clock())


@pytest.mark.parametrize("policy", [CAB(one_hot=True, alpha=0.3), LinUCB(one_hot=True, alpha=0.3)])
def test_places_are_what_deciding_sees(policy: Any) -> None:
    made = bandit(policy="cab")
    rng = np.random.default_rng(3)
    for k in range(40):
        decide(made, ask(f"e{k}", f"u{k % 5}"))
        policy.learn(made.names[f"u{k % 5}"], "abc"[k % 3], float(rng.random()))
    users = list(made.users)
    found = insight.places(policy, ["a", "b", "new"], users, made)
    for column, item in zip(found, ["a", "b", "new"], strict=True):
        for place, user in zip(column, users, strict=True):
            decision = policy.explain(user, [item])
            assert place.estimate == pytest.approx(decision.estimate[0])
            assert place.width == pytest.approx(decision.width[0])
            assert place.known == (item != "new")


def test_alike_is_the_neighbourhood_of_cab() -> None:
    made = bandit(policy="cab")
    policy = CAB(one_hot=True, alpha=0.2)
    rng = np.random.default_rng(1)
    for k in range(60):
        decide(made, ask(f"e{k}", f"u{k % 6}"))
        policy.learn(made.names[f"u{k % 6}"], "a", float(rng.random() < (k % 6) / 6))
    users = list(made.users)
    (standing,) = insight.places(policy, ["a"], users, made)
    for user, mine in zip(users, standing, strict=True):
        near = {made.ids[other] for other in policy.neighbours(user, "a")}  # type: ignore[index]
        assert near == {place.user for place in standing if insight.alike(mine, place)}


def test_groups_are_disjoint_and_complete() -> None:
    standing = [
        Place("a", 0.9, 0.05, True),
        Place("b", 0.8, 0.10, True),
        Place("c", 0.1, 0.05, True),
        Place("d", 0.5, 0.02, True),
        Place("e", 0.0, 0.90, False),
    ]
    found = [[place.user for place in group] for group in insight.groups(standing)]
    assert found == [["a", "b"], ["d"], ["c"]]


def test_vectors_are_looked_at_as_they_were_last_chosen() -> None:
    made = bandit(policy="cab", exploration=0.0)
    actions = [Action("news", [{"type": "news"}]), Action("jazz", [{"type": "music"}])]
    record = decide(made, Question("e1", "ann", actions))
    made.reward("e1", 1.0, START)
    tail = Tail()
    tail._take(record)
    item = record.actions[record.choice]
    found = insight.context_of(item, made, tail.of(made))
    assert found is not None
    (place,) = insight.places(found[0], [found[1]], [record.user], made)[0]
    assert place.known
    assert place.estimate > 0.3
    assert insight.context_of("never", made, tail.of(made)) is None


def test_a_user_whose_id_cannot_stand_in_a_path_can_be_forgotten(tmp_path: Path) -> None:
    chosen = Settings(store=str(tmp_path / "log.db"), config=Config())
    with TestClient(make_app(chosen, SqliteStore(chosen.store)), base_url="http://127.0.0.1") as client:
        body = {"contextFeatures": [{"user": {"id": "a/b"}}], "actions": [{"id": "x"}]}
        client.post("/personalizer/v1.0/rank", json=body)
        assert client.get("/v1/users").json()["users"][0]["id"] == "a/b"
        assert client.delete("/v1/users", params={"id": "a/b"}).status_code == 204
        assert client.get("/v1/users").json() == {"users": [], "total": 0}
        assert client.delete("/v1/users", params={"id": "a/b"}).status_code == 404
        assert client.get("/v1/split", params={"item": "never"}).json()["error"]["code"] == "unknown_item"
        assert client.get("/v1/statistics", params={"minutes": 0}).status_code == 400


def test_every_route_is_documented(tmp_path: Path) -> None:
    chosen = Settings(store=str(tmp_path / "log.db"))
    text = (Path(__file__).parents[3] / "docs" / "service.md").read_text()
    with TestClient(make_app(chosen, SqliteStore(chosen.store)), base_url="http://127.0.0.1") as client:
        for path, methods in client.get("/openapi.json").json()["paths"].items():
            for method in methods:
                known = f"{method.upper()} {path}`" in text or f"`{path}`" in text
                assert known, f"docs/service.md does not mention {method.upper()} {path}"
