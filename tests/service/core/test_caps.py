"""Frequency caps: at most so many looks of an action per user in a period, with exact probabilities."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from coterie.client.calls import ranked_of
from coterie.data.logs.interactions import SHARED
from coterie.data.logs.records import Rank, decode
from coterie.data.logs.rules import Cap, Challenger, Config
from coterie.errors import ParameterError
from coterie.service.coordination.client_decisions import Decided, keep_all
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.core.answers import ranking_of
from coterie.service.core.bandit import Bandit
from coterie.service.reports.exploring import asked_again
from coterie.service.settings import read_settings
from coterie.service.snapshots import snapshot
from tests.service.helpers import (
    START,
    Clock,
    again,
    ask,
    bandit,
    decide,
    served,
    settings_of,
    with_coordinator,
)

EACH = Cap(looks=2, period=10.0)


def chosen(record: Rank) -> str:
    return record.actions[record.choice]


def test_an_action_is_left_out_after_its_looks_and_comes_back_after_the_period() -> None:
    """The one action "a" may be shown twice in 10 seconds: at 0 s and 4 s, so again at 10 s, and then at 14 s."""
    made = bandit(caps=(Cap(2, 10.0, "a"),), exploration=0.2)
    shown = []
    for second in (0, 4, 9, 10, 13, 14):
        # "b" is excluded by the request where "a" may be shown, so that "a" is.
        free = second in (0, 4, 10, 14)
        out = frozenset("b") if free else frozenset()
        record = decide(made, ask(f"e{second}", actions="ab", excluded=out), START + 1000 * second)
        shown.append((chosen(record), record.capped, record.excluded, record.probability))
    free_way, capped_way = ("a", (), (1,), 1.0), ("b", (0,), (0,), 1.0)
    assert shown == [free_way, free_way, capped_way, free_way, capped_way, free_way]


def test_probabilities_are_those_of_the_actions_that_are_left() -> None:
    made = bandit(caps=(Cap(1, 60.0),), exploration=0.3)
    twin = bandit(exploration=0.3)
    first = decide(made, ask("first"))
    gone = chosen(first)
    answer = ranking_of(decide(made, ask("second")))
    plain = ranking_of(decide(twin, ask("second", excluded=frozenset(gone))))
    assert answer.capped == [gone]
    assert not answer.all_capped
    assert msgspec.structs.replace(answer, capped=[]) == plain
    assert answer.ranking[-1].id == gone
    assert answer.ranking[-1].probability == 0
    assert sum(one.probability for one in answer.ranking) == pytest.approx(1)
    other = ranking_of(decide(made, ask("of-bob", user="bob")))
    assert other.capped == []


@pytest.mark.parametrize(
    ("baseline", "excluded", "shown"), [(None, "", "a"), ("b", "", "b"), ("b", "b", "a")]
)
def test_if_every_action_is_capped_the_baseline_is_shown(
    baseline: str | None, excluded: str, shown: str
) -> None:
    made = bandit(caps=(Cap(1, 60.0),), exploration=1.0)
    for k in range(3):
        decide(made, ask(f"e{k}"))
    record = decide(made, ask("last", baseline=baseline, excluded=frozenset(excluded)))
    answer = ranking_of(record)
    assert (chosen(record), record.shown, record.probability) == (shown, "baseline", 1.0)
    assert answer.all_capped
    assert set(answer.capped) == set("abc") - set(excluded)
    assert {one.id: one.probability for one in answer.ranking} == {
        name: float(name == shown) for name in "abc"
    }


def test_a_request_without_a_user_has_no_caps() -> None:
    made = bandit(caps=(Cap(1, 60.0),))
    assert [decide(made, ask(f"e{k}", user=SHARED)).capped for k in range(4)] == [()] * 4


def test_a_jump_of_the_time_of_day_leaves_periods_their_length() -> None:
    for by in (86_400_000, -3_600_000):
        made = bandit(caps=(Cap(1, 60.0),))
        decide(made, ask("first", actions="a"))
        made.jump(START + by, by)
        assert decide(made, ask("capped", actions="a"), START + by + 59_999).capped == (0,)
        made = bandit(caps=(Cap(1, 60.0),))
        decide(made, ask("first", actions="a"))
        made.jump(START + by, by)
        restored = snapshot.restore(snapshot.dump(made))
        for one in (made, restored):
            one.names.setdefault("ann", 0)
            assert decide(one, ask("open", actions="a"), START + by + 60_000).capped == ()


def test_decisions_of_clients_and_deferred_ones_count() -> None:
    made = bandit(caps=(Cap(2, 60.0, "a"),))
    keep_all(made, [Decided(ask("theirs", actions="ab"), [0, 1], [0.5, 0.5])], START)
    decide(made, ask("deferred", actions="a", deferred=True))
    keep_all(made, [Decided(ask("more", actions="ab"), [0, 1], [0.5, 0.5])], START)  # theirs to decide
    kept = decode(made.outbox[-1])
    assert isinstance(kept, Rank)
    assert (chosen(kept), kept.capped) == ("a", ())
    assert decide(made, ask("ours", actions="ab")).capped == (0,)


def test_caps_hold_in_every_arm_and_mode() -> None:
    both = {"holdback": 0.4, "challenger": Challenger("linucb", 0.4)}
    rules: list[dict[str, Any]] = [both, {"mode": "apprentice"}]
    for rule in rules:
        made = bandit(caps=(Cap(1, 60.0),), **rule)
        records = [decide(made, ask(f"e{k}", user=f"u{k % 20}")) for k in range(60)]
        assert len({record.arm for record in records}) == (3 if "holdback" in rule else 1)
        for user in range(20):
            assert sorted(map(chosen, records[user::20])) == ["a", "b", "c"]


def most_in_a_period(times: Sequence[int], period: float) -> int:
    """Return the largest number of looks within any period, by trying all: the slow, obvious way."""
    return max((sum(start <= t < start + 1000 * period for t in times) for start in times), default=0)


def hold(records: Sequence[Rank], caps: Sequence[Cap]) -> int:
    """Check every cap on a log, and that an action is left out only if it has to be; return how many were."""
    looks: dict[tuple[int, str], list[int]] = {}
    out = 0
    for record in records:
        for k, name in enumerate(record.actions):
            past = looks.get((record.user, name), [])
            full = any(
                sum(t > record.at - 1000 * cap.period for t in past) >= cap.looks
                for cap in caps
                if cap.action in (None, name)
            )
            asked_out = k in record.excluded and k not in record.capped
            assert (k in record.capped) == (full and not asked_out), (record.event, name)
            out += k in record.capped
        all_capped = record.choice in record.capped
        assert all_capped == (len(record.capped) + _asked_out(record) == len(record.actions))
        looks.setdefault((record.user, chosen(record)), []).append(record.at)
    free: dict[tuple[int, str], list[int]] = {}
    for record in records:
        if record.choice not in record.capped:
            free.setdefault((record.user, chosen(record)), []).append(record.at)
    for (_, name), times in free.items():
        for cap in caps:
            if cap.action in (None, name):
                assert most_in_a_period(times, cap.period) <= cap.looks
    return out


def _asked_out(record: Rank) -> int:
    return len(set(record.excluded) - set(record.capped))


def press(n: int, users: int) -> tuple[list[Rank], Bandit, tuple[Cap, ...]]:
    """Decide n times, with retries, exclusions, rewards, erasures and snapshots in between."""
    rng = np.random.default_rng(3)
    caps = (EACH, Cap(5, 60.0), Cap(1, 30.0, "c"))
    made = bandit(caps=caps, exploration=0.2)
    twin = bandit(caps=caps, exploration=0.2)
    twin.drain()
    made.drain()
    records: list[Rank] = []
    at = START
    while len(records) < n:
        at += int(rng.integers(0, 2000 // users + 2))
        user = f"u{rng.integers(users)}"
        question = ask(
            f"e{len(records)}", user, "abcd", excluded=frozenset("d" if rng.random() < 0.3 else "")
        )
        record = decide(made, question, at)
        records.append(record)
        if rng.random() < 0.2:
            assert again(made, question, at + 5).position == made.position - 1
        if rng.random() < 0.5:
            made.reward(question.event, float(rng.random() < 0.3), at)
        if rng.random() < 20 / n:
            made = _restored(made, twin)
    return records, _restored(made, twin), caps


def _restored(made: Bandit, twin: Bandit) -> Bandit:
    """Return the bandit from its snapshot, after a twin has replayed its records to the same state."""
    names, secret = dict(made.names), made.secret
    for encoded in made.drain().records:
        twin.apply(decode(encoded))
    twin.drain()
    assert snapshot.dump(made) == snapshot.dump(twin)
    found = snapshot.restore(snapshot.dump(made))
    for name, number in names.items():
        found.user_names.put(number, name)
    found.drain()
    assert found.secret == secret
    return found


def test_caps_hold_exactly_with_retries_and_snapshots() -> None:
    records, _, caps = press(1500, users=6)
    assert hold(records, caps) > 300


@pytest.mark.slow
def test_caps_hold_exactly_in_a_hundred_thousand_decisions() -> None:
    records, _, caps = press(100_000, users=2000)
    assert hold(records, caps) > 10_000


def test_off_policy_estimates_on_a_log_with_caps_hold_the_truth() -> None:
    """The uniform choice among the actions that are left, by inverse propensities: within four standard errors."""
    rng = np.random.default_rng(4)
    pays = {"a": 0.8, "b": 0.3, "c": 0.1}
    made = bandit(caps=(Cap(3, 30.0),), exploration=0.3)
    truth, estimates = [], []
    for k in range(3000):
        record = decide(made, ask(f"e{k}", f"u{rng.integers(8)}"), START + 700 * k)
        value = float(rng.random() < pays[chosen(record)])
        made.reward(f"e{k}", value, START + 700 * k)
        left = {one.id for one in ranking_of(record).ranking if one.probability > 0}
        truth.append(np.mean([pays[name] for name in left]))
        estimates.append(value / len(left) / record.probability)
    error = np.std(np.array(estimates) - truth) / np.sqrt(len(truth))
    assert abs(np.mean(estimates) - np.mean(truth)) < 4 * error


def test_slots_and_retries_keep_their_looks_over_a_restart(tmp_path: Path) -> None:
    """Two slots a page, each action once a minute: two pages take all four actions, and the third has baselines."""
    config = Config(caps=(Cap(1, 60.0),), exploration=0.2)
    clock = Clock()

    def page(name: str) -> list[Any]:
        return [ask(f"{name}\u001f{k}", actions="abcd", slot=str(k)) for k in range(2)]

    def ranks(*names: str) -> list[list[Rank]]:
        async def work(coordinator: Coordinator) -> list[list[Rank]]:
            return [await coordinator.rank_slots(page(name)) for name in names]

        return with_coordinator(settings_of(tmp_path / "log.db", config), work, clock)

    first, retried = ranks("p", "p")
    assert first == retried
    again_first, second = ranks("p", "q")
    assert again_first == first
    shown = [chosen(record) for record in (*first, *second)]
    assert sorted(shown) == ["a", "b", "c", "d"]
    (third,) = ranks("r")
    assert all(record.choice in record.capped for record in third)
    assert [chosen(record) for record in third] == ["a", "b"]
    clock.turn(60)
    (later,) = ranks("s")
    assert all(record.capped == () for record in later)


def test_caps_over_http_in_settings_and_in_the_client(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(
        '[[config.caps]]\nlooks = 1\nperiod = 60\naction = "a"\n[[config.caps]]\nlooks = 2\nperiod = 9\n'
    )
    config = read_settings(file, {}).config
    assert config.caps == (Cap(1, 60.0, "a"), Cap(2, 9.0))
    with served(tmp_path / "log.db") as (client, _):
        rules = client.get("/v1/configuration").json()
        assert rules["caps"] == []
        rules["caps"] = [{"looks": 1, "period": 60.0, "action": None}]
        assert client.put("/v1/configuration", json=rules).json() == rules
        body = {"user": "ann", "actions": [{"id": "a"}, {"id": "b"}]}
        answers = [client.post("/v1/rank", json=body | {"eventId": f"e{k}"}).json() for k in range(3)]
        assert "capped" not in answers[0]
        assert answers[1]["capped"] == [answers[0]["chosen"]]
        assert "allCapped" not in answers[1]
        assert (answers[2]["capped"], answers[2]["allCapped"], answers[2]["chosen"]) == (
            ["a", "b"],
            True,
            "a",
        )
        assert client.post("/v1/rank", json=body | {"eventId": "e1"}).json() == answers[1]
        told = client.get("/v1/events/e2").json()
        assert (told["capped"], told["allCapped"], told["shown"]) == (["a", "b"], True, "baseline")
        assert client.post("/v1/what-if", json=body).json()["allCapped"]
        ranked = ranked_of(answers[2])
        assert (ranked.capped, ranked.all_capped) == (("a", "b"), True)
        sent = {"contextFeatures": [{"user": {"id": "ann"}}], "actions": [{"id": "a", "features": []}]}
        old = client.post("/personalizer/v1.0/rank", json=sent).json()
        assert set(old) == {"ranking", "eventId", "rewardActionId"}
        assert old["rewardActionId"] == "a"
        wrong = (
            {"looks": 0, "period": 60},
            {"looks": 1, "period": 0},
            {"looks": 1},
            {"looks": 1, "period": -1},
        )
        for cap in wrong:
            answer = client.put("/v1/configuration", json={"caps": [cap]})
            assert answer.status_code == 400, cap
            assert "$.caps[0]" in answer.json()["error"]["message"]
        assert client.get("/v1/configuration").json() == rules


def test_a_count_inside_of_a_list_may_be_written_as_any_json_number(tmp_path: Path) -> None:
    with served(tmp_path / "log.db") as (client, _):
        answer = client.put("/v1/configuration", json={"caps": [{"looks": 2.0, "period": 60}]})
        assert (answer.status_code, answer.json()["caps"][0]["looks"]) == (200, 2)


def test_a_wrong_cap_in_the_settings_is_refused_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[[config.caps]]\nlooks = 0\nperiod = 60\n")
    with pytest.raises(ParameterError, match=r"`int` >= 1.*caps"):
        read_settings(file, {})


def test_a_best_guess_does_not_change_because_it_was_shown_often_enough() -> None:
    made = bandit(caps=(Cap(1, 60.0),), exploration=0.0)
    records = [decide(made, ask(f"e{k}")) for k in range(2)]  # one of three actions is left
    assert [asked_again(record, made) for record in records] == [False] * 2


def test_looks_that_no_cap_counts_are_not_kept() -> None:
    made = bandit(caps=(Cap(2, 10.0),))
    for k in range(50):
        decide(made, ask(f"e{k}", actions=chr(97 + k % 20)), START + 3000 * k)
    times = made.users[0].looks
    assert len(times) <= 4
    assert all(len(one) <= 2 for one in times.values())
    assert all(a < b for one in times.values() for a, b in pairwise(one))
    assert bandit().users == {}
