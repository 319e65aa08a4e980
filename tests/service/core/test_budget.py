"""Budgets: the price of cost follows what was spent, probabilities stay exact, and all of it comes from the log."""

import asyncio
import math
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from coterie.client.calls import ranked_of
from coterie.data.logs.records import Rank, ShownAction, decode
from coterie.data.logs.rules import Budget, Challenger, Config
from coterie.policies import Basis, Decision
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.core.answers import ranking_of
from coterie.service.core.bandit import Bandit
from coterie.service.core.budget import DAY, MOST, RATE, Spending
from coterie.service.settings import read_settings
from coterie.service.snapshots import snapshot
from tests.miniature import real_data
from tests.service.coordination.test_many import with_services
from tests.service.core import spending
from tests.service.helpers import START, ask, bandit, decide, served

PER_DECISION = Budget(amount=2.0)


def cost(record: Rank) -> float:
    assert record.costs is not None
    return float(np.frombuffer(record.costs)[record.choice])


def play(
    made: Bandit, n: int, costs: tuple[float, ...], pays: tuple[float, ...], gap: int = 1000
) -> list[Rank]:
    """Decide n times; action k pays 1 with probability pays[k]."""
    rng = np.random.default_rng(3)
    out = []
    first = made.position
    for t in range(n):
        at = START + gap * t
        record = decide(made, ask(f"{first}-{t}", f"user {t % 50}", "abc"[: len(costs)], costs=costs), at)
        made.reward(record.event, float(rng.random() < pays[record.choice]), at)
        out.append(record)
    return out


def test_the_price_by_hand() -> None:
    """A budget of 2 per decision, payoffs unknown: a step is a quarter of a payoff per 2 of cost, times 0.05."""
    step = RATE * 0.25 / 2
    found = Spending(START)
    found.add(6.0, START, PER_DECISION)  # 2 shares more than its own, and 2 of 100 saved
    assert found.price == pytest.approx(step * (2 + 0.02))
    found.add(0.0, START, PER_DECISION)  # one share less: 1 above the budget in all
    assert found.price == pytest.approx(step * (2 + 0.02 - 1 + 0.01))
    assert (found.decisions, found.spent, found.over) == (2, 6.0, 1.0)
    found.correct(-6.0, START, PER_DECISION)  # the first one cost nothing after all
    assert (found.spent, found.over, found.price) == (0.0, -2.0, 0.0)
    found.add(1e9, START, PER_DECISION)
    assert found.price == pytest.approx(step * (MOST + 1))


def test_a_day_has_what_is_left_of_it_and_begins_anew() -> None:
    budget = Budget(10.0, "day")
    midnight = START - START % DAY
    found = Spending(midnight)
    assert found.left(budget, midnight) == 10.0
    for hour in range(4):  # one decision an hour
        found.add(1.0, midnight + hour * DAY // 24, budget)
    at = midnight + 4 * DAY // 24
    assert found.left(budget, at) == 6.0
    assert found.share(budget, at) == pytest.approx(6.0 / 20)
    assert found.left(budget, midnight + DAY) == 10.0
    total = Budget(10.0, "total", days=2.0)
    assert found.left(total, midnight + DAY) == 6.0
    assert found.share(total, midnight + DAY) == pytest.approx(6.0 / 24)


def test_the_price_is_learned_so_that_the_budget_is_spent_and_no_more() -> None:
    """The better action costs 10: with 4 per decision it can be shown in four of ten."""
    made = bandit(budget=Budget(4.0))
    records = play(made, 3000, (10.0, 0.0), (0.6, 0.3))
    spent = [cost(record) for record in records]
    assert sum(spent) / 3000 == pytest.approx(4.0, rel=0.02)
    assert made.spending is not None
    assert made.spending.spent == sum(spent)
    assert {record.choice for record in records[-200:]} == {0, 1}


def test_a_budget_that_is_large_enough_has_no_price() -> None:
    made = bandit(budget=Budget(100.0))
    records = play(made, 400, (10.0, 0.0), (0.9, 0.1))
    assert records[-1].price == 0
    assert np.mean([record.choice == 0 for record in records[-100:]]) > 0.9


@pytest.mark.parametrize("policy", ["hierarchical", "cab", "linucb"])
@pytest.mark.parametrize("exploration", [0.0, 0.2])
def test_probabilities_under_a_price_are_the_shares_that_are_shown(policy: str, exploration: float) -> None:
    """One question asked again and again, always in the same state."""
    made = bandit(policy=policy, exploration=exploration, budget=Budget(1.0))
    play(made, 60, (4.0, 1.0, 0.0), (0.6, 0.5, 0.4))
    assert made.spending is not None
    made.spending.price = 0.03
    n, shown = 400, np.zeros(3)
    for k in range(n):
        record, _ = made.what_if(ask(f"again {k}", actions="abc", costs=(4.0, 1.0, 0.0)))
        shown[record.choice] += 1
    chances = np.zeros(3)
    for one in ranking_of(record).ranking:
        chances["abc".index(one.id)] = one.probability
    assert chances.sum() == pytest.approx(1)
    assert record.price == 0.03
    assert (abs(shown / n - chances) <= 4 * np.sqrt(chances * (1 - chances) / n) + 1e-12).all()


def test_exploration_costs_no_more_than_its_part_of_the_budget() -> None:
    made = bandit(policy="cab", exploration=0.3, budget=Budget(1.0))
    record = decide(made, ask("one", actions="abc", costs=(1.0, 0.0, 1000.0)))
    assert record.best == 0
    assert record.chances is not None
    assert np.frombuffer(record.chances) == pytest.approx([1 - 0.1 - 0.0001, 0.1, 0.0001])


def gaps_of(traffic: str, days: int) -> list[int]:
    """Return the milliseconds between decisions: even, or ten times as many in the first half of each day."""
    if traffic == "even":
        return [DAY // 1000] * (1000 * days)
    return ([DAY // 1820] * 910 + [DAY // 182] * 91) * days


@pytest.mark.parametrize("traffic", ["even", "by day"])
@pytest.mark.parametrize("per", ["day", "total"])
@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_a_period_is_spent_evenly_and_the_next_one_is_not_the_worse_for_it(
    per: Any, traffic: str, unit: float
) -> None:
    """One action costs 10 units and is better by 0 to 1, the other is free; a fifth of all decisions can afford it.

    So the right price is 0.08, also right after a day on which nothing was left.
    """
    rng, midnight = np.random.default_rng(4), START - START % DAY
    days, gaps = 10, gaps_of(traffic, 10)
    daily = len(gaps) / days * 2.0 * unit
    budget = Budget(daily if per == "day" else daily * days, per, days=float(days))
    found, at, spent, prices = Spending(midnight), midnight, np.zeros(days), []
    for gap in gaps:
        better = rng.random()
        found.learn(float(rng.random() < better))
        wants = better > found.price * 10 * unit and 10 * unit <= found.left(budget, at)
        spent[min(days - 1, (at - midnight) // DAY)] += 10 * unit * wants
        found.add(10 * unit * wants, at, budget)
        prices.append(found.price * unit)
        at += gap
    assert spent.sum() <= daily * days * (1 + 1e-9)
    # Traffic that falls to a tenth at noon cannot spend the half that is left then.
    assert spent.sum() > (0.95 if traffic == "even" else 0.85) * daily * days
    assert (spent[1:] > 0.5 * daily).all()
    assert max(prices) < 1.0
    assert np.median(prices[len(prices) // 2 :]) == pytest.approx(0.08, rel=0.25)


@pytest.mark.parametrize("amount", [1e-12, 1e12])
@pytest.mark.parametrize("per", ["decision", "day", "total"])
def test_no_amount_and_no_cost_makes_a_number_infinite(amount: float, per: Any) -> None:
    made = bandit(budget=Budget(amount, per, days=36_500.0))
    rng = np.random.default_rng(5)
    for t in range(200):
        costs = tuple(rng.choice([0.0, 5e-324, 1e-12, 1.0, 1e12], 3).tolist())
        record = decide(made, ask(f"e{t}", f"user {t % 9}", costs=costs), START + t // 50)
        made.reward(record.event, 1.0, START + t // 50, cost=float(rng.choice([0.0, 1e-300, 1e12])))
        assert made.spending is not None
        assert all(math.isfinite(x) for x in msgspec.structs.astuple(made.spending))


def test_what_is_left_of_a_day_leaves_out_what_costs_more_and_the_cheapest_stays() -> None:
    made = bandit(budget=Budget(5.0, "day"), exploration=0.0)
    first = decide(made, ask("one", actions="ab", costs=(5.0, 1.0), excluded=frozenset("b")))
    assert (first.choice, first.unaffordable) == (0, ())
    second = decide(made, ask("two", actions="abc", costs=(5.0, 1.0, 2.0)))
    assert (second.choice, second.unaffordable) == (1, (0, 2))
    answer = ranking_of(second)
    assert answer.unaffordable == ["a", "c"]
    assert ranked_of(msgspec.to_builtins(answer)).unaffordable == ("a", "c")
    later = decide(made, ask("three", actions="ab", costs=(5.0, 1.0)), START + DAY)
    assert later.unaffordable == ()


def test_the_state_comes_from_the_log_and_from_snapshots() -> None:
    config = Config(budget=Budget(1.0), challenger=Challenger("cab", 0.3), caps=())
    made = Bandit()
    made.configure(config, START)
    play(made, 80, (4.0, 1.0, 0.0), (0.6, 0.5, 0.4))
    made.reward(decide(made, ask("late", costs=(4.0, 1.0, 0.0))).event, 0.5, START + 100_000, cost=3.5)
    records = [decode(one) for one in made.outbox]
    replayed = Bandit()
    for number, name in made.ids.items():
        replayed.user_names.put(number, name)
    for record in records:
        replayed.apply(record)
    back = snapshot.restore(snapshot.dump(made))
    assert replayed.spending == made.spending == back.spending != Spending(START)
    assert snapshot.dump(replayed) == snapshot.dump(made)


def test_what_the_baseline_costs_is_counted_and_moves_no_price() -> None:
    """Otherwise a long time in apprentice mode would leave a price that only the cheapest action is worth."""
    made = bandit(budget=Budget(1.0), mode="apprentice")
    play(made, 60, (4.0, 1.0, 0.0), (0.6, 0.5, 0.4))
    assert made.spending is not None
    assert (made.spending.spent, made.spending.price, made.spending.over) == (240.0, 0.0, 0.0)


def test_another_budget_starts_again_with_the_same_price() -> None:
    made = bandit(budget=Budget(1.0))
    play(made, 50, (4.0, 1.0, 0.0), (0.6, 0.5, 0.4))
    assert made.spending is not None
    price = made.spending.price
    made.configure(msgspec.structs.replace(made.config, budget=Budget(3.0)), START + 60_000)
    assert made.spending == Spending(START + 60_000, price=price)
    made.configure(msgspec.structs.replace(made.config, budget=None), START + 60_000)
    assert made.spending is None
    record = decide(made, ask("free", costs=(4.0, 1.0, 0.0)), START + 60_000)
    assert (record.price, cost(record)) in ((0.0, 4.0), (0.0, 1.0), (0.0, 0.0))


def test_less_is_a_decision_of_its_own() -> None:
    one = Decision("ann", ["a", "b"], np.array([3.0, 1.0]))
    assert one.less(np.array([2.5, 0.0])).choice == 1
    wide = Decision("ann", ["a", "b"], np.array([3e6, 1e6]), basis=Basis(spread=np.array([1e6, 1e6])))
    assert wide.less(np.array([2e6, 0.0])).probability == pytest.approx([0.5, 0.5])


def test_costs_and_budgets_over_http(tmp_path: Path) -> None:
    with served(tmp_path / "store.db") as (client, _):
        kept = client.get("/v1/configuration").json()
        assert kept["budget"] is None
        kept["budget"] = {"amount": 2.0, "per": "day"}
        assert client.put("/v1/configuration", json=kept).json()["budget"]["per"] == "day"
        sent: dict[str, Any] = {
            "actions": [{"id": "a", "cost": 9}, {"id": "b", "cost": 1.5}],
            "eventId": "one",
        }
        first = client.post("/v1/rank", json=sent).json()
        assert (first["chosen"], first["unaffordable"]) == ("b", ["a"])
        assert client.post("/v1/rank", json=sent).json() == first
        other = client.post("/v1/rank", json={**sent, "actions": [{"id": "a", "cost": 8}, {"id": "b"}]})
        assert other.status_code == 409
        told = client.get("/v1/events/one").json()
        assert (told["cost"], told["price"], told["unaffordable"]) == (1.5, 0.0, ["a"])
        assert (
            client.post("/v1/events/one/reward", json={"value": 1, "cost": 0.5}).json()["outcome"]
            == "applied"
        )
        found = client.get("/v1/statistics").json()["budget"]
        assert (found["spent"], found["left"], found["decisions"]) == (0.5, 1.5, 1)
        assert "coterie_spent_total 0.5" in client.get("/metrics").text


@pytest.mark.parametrize("wrong", [-1, 1e13, "1", None, True])
def test_a_wrong_cost_is_refused_and_nothing_changes(tmp_path: Path, wrong: object) -> None:
    with served(tmp_path / "store.db") as (client, coordinator):
        before = coordinator.bandit.position
        answer = client.post("/v1/rank", json={"actions": [{"id": "a", "cost": wrong}]})
        assert answer.status_code == 400
        assert "cost" in answer.json()["error"]["message"]
        assert client.post("/v1/rank", json={"actions": [{"id": "a"}], "eventId": "e"}).status_code == 201
        wrong_cost = client.post("/v1/events/e/reward", json={"value": 1, "cost": wrong})
        assert wrong_cost.status_code == (200 if wrong is None else 400)
        for amount in (0, -1, wrong):
            kept = client.get("/v1/configuration").json()
            assert (
                client.put("/v1/configuration", json={**kept, "budget": {"amount": amount}}).status_code
                == 400
            )
        assert coordinator.bandit.position == before + 1 + (wrong is None)


def test_a_budget_in_a_settings_file(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    path.write_text("[config.budget]\namount = 25.0\nper = 'day'\n")
    assert read_settings(path, {}).config.budget == Budget(25.0, "day")


@pytest.mark.slow
def test_prompts_are_answered_within_their_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_DATA", str(real_data("paretobandit")))
    for amount, least in zip(spending.BUDGETS, (0.870, 0.910), strict=True):
        played = [spending.play(amount, seed) for seed in range(3)]
        half = len(played[0].cost) // 2
        assert all(abs(one.cost[half:].mean() / amount - 1) < 0.02 for one in played)
        assert np.mean([one.quality[half:].mean() for one in played]) >= least
        cut = spending.play(amount, 0, cut=1800)
        assert cut.cost[2100:].mean() == pytest.approx(amount, rel=0.05)


@pytest.mark.parametrize("per", ["day", "total"])
def test_decisions_of_the_same_moment_spend_no_more_than_is_left(tmp_path: Path, per: str) -> None:
    """Two services decide 120 requests at once; "b" is the best and costs 1, and 25 may be spent."""

    async def work(services: list[Coordinator]) -> None:
        for service in services:
            await service.sequencer.follow()
        await services[0].observe([("ann", ShownAction("b"), 1.0), ("ann", ShownAction("a"), 0.0)] * 20)
        asked = [ask(f"e{k}", f"user {k}", "ab", costs=(0.0, 1.0)) for k in range(120)]
        found = await asyncio.gather(*(services[k % 2].rank(one) for k, one in enumerate(asked)))
        spent = sum(map(cost, found))
        assert spent == 25
        assert sum("b" in [one.actions[k] for k in one.unaffordable] for one in found) > 30

    budget = Budget(25.0, per=per)  # type: ignore[arg-type]
    with_services(str(tmp_path / "log.db"), work, count=2, budget=budget, exploration=0.3)


def test_a_minute_of_many_requests_does_not_raise_the_price_for_days() -> None:
    """1,000 requests in 40 s, then one a minute. The second day spends most of its budget, as it is worth it."""
    made = bandit(budget=Budget(3.0, per="day"))
    rng = np.random.default_rng(0)
    at, costs, spent = START - START % DAY + 1000, (0.0, 0.002, 0.01), []
    for t in range(1000 + 2 * 1440):
        at += 40 if t < 1000 else 60_000
        record = decide(made, ask(f"e{t}", f"user {t % 300}", "abc", costs=costs), at)
        made.reward(record.event, float(rng.random() < (0.1, 0.2, 0.4)[record.choice]), at)
        made.drain()
        spent.append(cost(record))
    assert 2.0 < sum(spent[-1440:]) < 3.1  # the last 24 hours are parts of two days
