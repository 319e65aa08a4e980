"""Named parts of rewards, and guardrails on them: broken only when an interval that holds for all looks says so."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coterie.data.logs.interactions import SHARED
from coterie.data.logs.records import Rank, decode, flatten
from coterie.data.logs.rules import Challenger, Config, Guardrail
from coterie.data.logs.service_log import exported
from coterie.errors import ParameterError
from coterie.service.core.bandit import Bandit
from coterie.service.core.guardrails import FEWEST, MOST_PARTS
from coterie.service.files.exports import write_dsjson, write_parquet
from coterie.service.problems import Problem
from coterie.service.settings import read_settings
from coterie.service.snapshots import snapshot
from tests.service.helpers import START, Clock, ask, bandit, decide, served, settings_of, with_coordinator

NEW: dict[str, Any] = {"payoff": {"clicked": 1.0, "complained": 0.0}}
CALM = Guardrail("complained", most=0.1)
TRIAL = Guardrail("complained", most=0.1, scope="trial")
OTHER = Challenger("linucb", 0.5)


def earn(
    made: Bandit, users: Sequence[str], complained: float = 1.0, prefix: str = "", **more: Any
) -> list[Rank]:
    """Decide once for each user, with a reward for each."""
    found = []
    for k, user in enumerate(users):
        found.append(decide(made, ask(f"{prefix}{user}-{k}", user), made.now + 1))
        parts = {"clicked": 0.0, "complained": complained}
        assert made.reward(found[-1].event, None, made.now, parts=parts, **more) == "applied"
    return found


def people(n: int, start: int = 0) -> list[str]:
    return [f"u{k}" for k in range(start, start + n)]


def test_a_reward_without_a_value_is_worth_the_weighted_sum_of_its_parts() -> None:
    """0.5·1 − 1·0.2 = 0.3; 0.5·4 is 2, which is cut to 1; a value that is sent counts as it is."""
    made = bandit(payoff={"clicked": 0.5, "complained": -1.0})
    for event, value, parts, learned in (
        ("a", None, {"clicked": 1.0, "complained": 0.2}, 0.3),
        ("b", None, {"clicked": 4.0, "seconds": 12.5}, 1.0),
        ("c", 0.25, {"clicked": 1.0}, 0.25),
        ("d", 0.5, {}, 0.5),
    ):
        decide(made, ask(event))
        assert made.reward(event, value, START, parts=parts) == "applied"
        assert made.events[event].value == learned
    tallies = {name: (part.all.count, part.all.total) for name, part in made.guards.parts.items()}
    assert tallies == {"clicked": (3, 6.0), "complained": (1, 0.2), "seconds": (1, 12.5)}


@pytest.mark.parametrize(
    ("parts", "weights", "said"),
    [
        ({}, {}, "the reward has no value, and no parts, and `payoff` .* send `value`, or set the weights"),
        (
            {"clicked": 1.0},
            {},
            "'clicked', which `payoff` in the configuration gives no weight .it has none.",
        ),
        ({"clicks": 1.0}, {"clicked": 1.0}, "'clicks', which `payoff` .* gives no weight .it has 'clicked'."),
    ],
)
def test_a_reward_that_is_worth_nothing_known_is_refused(
    parts: dict[str, float], weights: dict[str, float], said: str
) -> None:
    made = bandit(payoff=weights)
    decide(made, ask("a"))
    before = snapshot.dump(made)
    with pytest.raises(Problem, match=said):
        made.reward("a", None, START, parts=parts)
    assert snapshot.dump(made) == before


def test_a_loop_has_a_limited_number_of_parts() -> None:
    made = bandit(aggregation="sum")
    decide(made, ask("a"))
    for k in range(0, MOST_PARTS, 16):
        made.reward("a", 0.0, START, f"r{k}", parts={f"p{j}": 1.0 for j in range(k, k + 16)})
    with pytest.raises(Problem, match="'one_more' would be more than 64 names of parts"):
        made.reward("a", 0.0, START, "last", parts={"p1": 1.0, "one_more": 1.0})
    assert made.reward("a", 0.0, START, "last", parts={"p1": 1.0}) == "applied"


def test_parts_count_when_their_reward_does() -> None:
    """Not a duplicate and not a late one; of rewards that are summed, each."""
    first = bandit(**NEW)
    decide(first, ask("a"))
    outcomes = [first.reward("a", None, START, parts={"clicked": 1.0}) for _ in range(2)]
    decide(first, ask("b"))
    outcomes.append(first.reward("b", None, START + 601_000, parts={"clicked": 1.0}))
    assert outcomes == ["applied", "duplicate", "late"]
    assert first.guards.parts["clicked"].all.count == 1
    summed = bandit(**NEW, aggregation="sum")
    decide(summed, ask("a"))
    for name in "xyx":
        summed.reward("a", None, START, name, parts={"clicked": 1.0})
    assert summed.guards.parts["clicked"].all.count == 2


def test_a_broken_guardrail_shows_the_baseline_until_the_guardrails_change(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = bandit(**NEW, guardrails=(CALM,), exploration=0.5)
    with caplog.at_level(logging.WARNING):
        earn(made, people(FEWEST - 1))
        assert not made.guards.stopped()
        assert not caplog.messages
        earn(made, people(20, FEWEST))
    assert made.guards.stopped() == {""}
    [broken] = made.guards.broken_texts()
    assert "the guardrail on 'complained' is broken: its average was 1 (" in broken
    assert "at most 0.1 is allowed; since 2027-01-15" in broken
    assert broken.endswith("the baseline is shown")
    assert any(broken in line for line in caplog.messages)
    after = earn(made, people(60, 500), complained=0.0)
    assert {(one.shown, one.probability, one.choice) for one in after} == {("baseline", 1.0, 0)}
    assert made.what_if(ask("imagined", "u900"))[0].shown == "baseline"
    # Another rule leaves it broken; another guardrail starts again.
    made.configure(msgspec.structs.replace(made.config, wait=700.0), made.now)
    assert made.guards.stopped() == {""}
    made.configure(msgspec.structs.replace(made.config, guardrails=(Guardrail("complained", 0.2),)), made.now)
    assert not made.guards.stopped()
    assert {one.shown for one in earn(made, people(60, 600), complained=0.0)} == {"", "explored"}


def test_at_least_is_the_other_side() -> None:
    made = bandit(**NEW, guardrails=(Guardrail("clicked", least=0.5),))
    earn(made, people(FEWEST))
    assert "at least 0.5 is allowed" in made.guards.broken_texts()[0]


def test_users_are_the_units_and_visitors_without_a_name_are_users_of_their_own() -> None:
    known = bandit(**NEW, guardrails=(CALM,))
    earn(known, people(FEWEST - 1) * 5)
    assert not known.guards.stopped()
    assert (known.guards.guards[0].sums[""].users, known.guards.guards[0].sums[""].learned) == (99, 495)
    unknown = bandit(**NEW, guardrails=(CALM,))
    earn(unknown, [SHARED] * (FEWEST + 1))
    assert unknown.guards.stopped() == {""}


def test_decisions_before_the_guardrail_and_users_held_back_do_not_count() -> None:
    made = bandit(**NEW, holdback=0.5)
    before = [decide(made, ask(f"old-{user}", user)) for user in people(200)]
    made.configure(msgspec.structs.replace(made.config, guardrails=(CALM,)), START)
    for one in before:
        made.reward(one.event, None, START, parts={"complained": 1.0})
    assert not made.guards.guards[0].sums
    found = earn(made, people(80))
    assert made.guards.guards[0].sums[""].users == sum(one.arm == "champion" for one in found)


def test_a_challenger_that_breaks_it_stops_and_the_figures_freeze() -> None:
    made = bandit(**NEW, guardrails=(TRIAL,), holdback=0.2, challenger=OTHER, exploration=0.5)
    for k in range(1000):
        event = decide(made, ask(f"e{k}", f"u{k}"), made.now + 1)
        made.reward(event.event, None, made.now, parts={"complained": float(event.arm == "challenger")})
        if made.guards.stopped():
            break
    assert made.guards.stopped() == {"challenger"}
    arms = msgspec.json.encode(made.trial)
    tallies = msgspec.json.encode(made.guards.parts["complained"].arms)
    after = earn(made, people(300), complained=0.0, prefix="after-")
    assert {one.arm for one in after} == {"", "champion", "holdback"}
    assert {one.shown for one in after if one.arm == ""} == {"", "explored"}
    assert msgspec.json.encode(made.trial) == arms
    assert msgspec.json.encode(made.guards.parts["complained"].arms) == tallies
    # The champion is still watched. If it breaks the guardrail too, everybody is shown the baseline.
    earn(made, people(1000, 2000), prefix="later-")
    assert made.guards.stopped() == {"challenger", "champion"}
    last = earn(made, people(50, 5000), complained=0.0)
    assert {(one.arm, one.shown) for one in last} == {("", "baseline")}
    # A new trial starts again.
    made.configure(msgspec.structs.replace(made.config, challenger=Challenger("linucb", 0.4)), made.now)
    assert not made.guards.stopped()
    assert not made.guards.parts["complained"].arms


def test_the_state_is_a_function_of_the_log_and_a_snapshot_keeps_it() -> None:
    made = bandit(**NEW, guardrails=(CALM, TRIAL), holdback=0.2, challenger=OTHER)
    records = made.drain().records
    for k in range(400):
        earn(made, [f"u{k % 250}"], float(k % 3 > 0), prefix=f"{k}-")
        records += made.drain().records
        if k == 150:
            made = snapshot.restore(snapshot.dump(made))
            assert made.guards.guards[0].sums
    assert made.guards.stopped() >= {""}
    twin = Bandit()
    for record in records:
        twin.apply(decode(record))
        twin.drain()
    assert snapshot.dump(twin) == snapshot.dump(made)


def test_a_broken_guardrail_stays_broken_after_a_restart(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "log.db", Config(**NEW, guardrails=(CALM,)))
    clock = Clock()

    async def use(coordinator: Any) -> bytes:
        for user in people(130):
            event = (await coordinator.rank(ask(f"e-{user}", user))).event
            await coordinator.reward(event, None, parts={"clicked": 1.0, "complained": 1.0})
        return msgspec.json.encode(coordinator.bandit.guards)

    before = with_coordinator(settings, use, clock)
    assert b'"broken":{"":{"at"' in before

    async def look(coordinator: Any) -> bytes:
        assert (await coordinator.rank(ask("after", "u7"))).shown == "baseline"
        return msgspec.json.encode(coordinator.bandit.guards)

    assert with_coordinator(settings, look, clock) == before


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"guardrails": (Guardrail("complaint", most=0.1),)}, "no reward had the part 'complaint' of a guardrail"),
        ({"guardrails": (Guardrail("clicked"),)}, "the guardrail on 'clicked' has no bound"),
        ({"guardrails": (Guardrail("clicked", 0.1, 0.2),)}, "the guardrail on 'clicked' has two bounds"),
        ({"guardrails": (Guardrail("clicked", float("nan")),)}, "the bound of .* is nan, expected a finite number"),
        ({"guardrails": (Guardrail("clicked", least=float("inf")),)}, "is inf, expected a finite number"),
        ({"guardrails": (TRIAL,)}, "is for a trial, but there is none; set `holdback` or `challenger`"),
        ({"payoff": {"clicked": float("nan")}}, "the weight of the part 'clicked' is nan, expected a finite number"),
    ],
)  # fmt: skip
def test_a_guardrail_that_cannot_hold_is_refused_before_anything_changes(
    config: dict[str, Any], said: str
) -> None:
    made = bandit(**NEW)
    before = snapshot.dump(made)
    with pytest.raises(ParameterError, match=said):
        made.configure(Config(**{**NEW, **config}), START)
    assert snapshot.dump(made) == before


def test_a_part_of_an_earlier_reward_may_be_guarded() -> None:
    made = bandit()
    decide(made, ask("a"))
    made.reward("a", 0.5, START, parts={"seconds": 3.0})
    made.configure(Config(guardrails=(Guardrail("seconds", most=10.0),)), START)
    assert made.config.guardrails == (Guardrail("seconds", most=10.0),)


def test_guardrails_over_http_in_settings_and_in_exports(tmp_path: Path) -> None:
    toml = tmp_path / "loop.toml"
    toml.write_text(
        'store = "log.db"\n[config.payoff]\nclicked = 1.0\ncomplained = -0.5\n'
        '[[config.guardrails]]\npart = "complained"\nmost = 0.1\n'
    )
    config = read_settings(toml, {}).config
    assert config.guardrails == (CALM,)
    with served(tmp_path / "log.db", config) as (client, coordinator):
        for user in people(130):
            asked = {"user": user, "eventId": f"e-{user}", "actions": [{"id": "a"}, {"id": "b"}]}
            assert client.post("/v1/rank", json=asked).status_code == 201
            told = {"parts": {"clicked": 1, "complained": 1}}
            answer = client.post(f"/v1/events/e-{user}/reward", json=told)
            assert answer.json()["outcome"] == "applied"
        for wrong in (
            {"parts": {"": 1}},
            {"parts": {"a b": 1}},
            {"parts": {"a": 2e9}},
            {"parts": {"a": "1"}},
        ):
            assert client.post("/v1/events/e-u0/reward", json=wrong).status_code == 400
        many = {"value": 1, "parts": {f"p{k}": 1 for k in range(17)}}
        assert client.post("/v1/events/e-u0/reward", json=many).status_code == 400
        assert client.post("/v1/events/e-u0/reward", json={}).json()["error"]["code"] == "no_value"
        found = client.get("/v1/statistics").json()
        assert found["parts"][1] == {
            "name": "complained", "weight": -0.5, "count": 130, "mean": 1.0, "arms": {},
        }  # fmt: skip
        [rail] = found["guardrails"]
        assert (rail["part"], rail["most"], rail["scope"], rail["arm"]) == ("complained", 0.1, "loop", "")
        assert rail["broken"]["users"] == rail["users"]
        assert rail["broken"]["interval"]["low"] > 0.1
        assert found["warning"].startswith("the guardrail on 'complained' is broken")
        assert 'coterie_guardrail_broken{part="complained"} 1.0' in client.get("/metrics").text
        shown = client.get("/v1/configuration").json()
        assert shown["guardrails"] == [{"part": "complained", "most": 0.1}]
        assert "note" not in client.put("/v1/configuration", json={**shown, "wait": 60}).json()
        loose = {**shown, "guardrails": [{"part": "complained", "most": 0.9}]}
        assert (
            client.put("/v1/configuration", json=loose)
            .json()["note"]
            .startswith("the guardrails start again")
        )
        refused = client.put("/v1/configuration", json={**shown, "guardrails": [{"part": "x", "most": 1}]})
        assert refused.status_code == 422
        assert "no reward had the part 'x'" in refused.json()["error"]["message"]
        records = [*flatten(coordinator.store.read())]
        names = coordinator.bandit.ids
    write_dsjson(records, names, tmp_path / "log.dsjson")
    line = json.loads((tmp_path / "log.dsjson").read_text().splitlines()[0])
    assert line["o"] == [{"v": 0.5, "EventId": "e-u0", "parts": [{"clicked": 1.0, "complained": 1.0}]}]
    write_parquet(records, names, tmp_path / "log.parquet")
    reward: Any = [*exported(tmp_path / "log.parquet")][2][2]
    assert reward.parts == {"clicked": 1.0, "complained": 1.0}
