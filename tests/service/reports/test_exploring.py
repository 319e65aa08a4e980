"""How much is left to chance, whether best guesses rest, and what is said when a loop stops exploring."""

import logging
import math
from pathlib import Path

import numpy as np
import pytest

from coterie.data.logs.records import Rank
from coterie.data.logs.rules import Config
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.core.statistics import MINUTE, entropy
from coterie.service.reports import curve, exploring
from tests.service.helpers import START, Clock, ask, bandit, decide, settings_of, with_coordinator
from tests.service.http.test_http import client_of


def test_entropy_by_hand() -> None:
    """A tenth of the traffic gets any of two actions: 0.95 and 0.05, so 0.2864 bits. Of four: 0.925 and 3 · 0.025."""
    made = bandit(policy="linucb", exploration=0.1)
    assert entropy(decide(made, ask("a", actions="ab")))[1] == pytest.approx(0.28640, abs=1e-5)
    right = -0.925 * math.log2(0.925) - 3 * 0.025 * math.log2(0.025)
    assert entropy(decide(made, ask("b", actions="abcd")))[1] == pytest.approx(right)
    assert entropy(decide(made, ask("c", actions="a"))) == (False, 0.0)  # there was no choice
    gaps = bandit(exploration=0.1)
    record = decide(gaps, ask("d", actions="abcd"))
    assert record.chances is not None
    chances = np.frombuffer(record.chances)
    assert entropy(record)[1] == pytest.approx(-(chances * np.log2(chances)).sum())
    assert entropy(decide(bandit(mode="apprentice"), ask("e"))) == (False, 0.0)
    assert entropy(decide(bandit(policy="linucb", exploration=0.0), ask("f"))) == (True, 0.0)


def test_a_loop_that_stops_exploring_is_noticed_after_enough_decisions() -> None:
    made = bandit(exploration=0.0)
    for k in range(exploring.ENOUGH):
        assert exploring.warning(made.statistics, made.config, made.now) is None
        decide(made, ask(f"e{k}", f"user-{k % 9}"))
    assert exploring.warning(made.statistics, made.config, made.now)
    said = exploring.warning(made.statistics, made.config, made.now)
    assert said is not None
    assert "stopped exploring: the choices of the last hour had an entropy of 0.0000 bits, over 200" in said
    assert "exploration is 0, raise it" in said
    hour = exploring.SPAN * MINUTE
    assert (
        exploring.warning(made.statistics, made.config, made.now + hour) is None
    )  # nothing was decided since


@pytest.mark.parametrize("config", [{"exploration": 0.02}, {"mode": "apprentice"}, {"policy": "random"}])
def test_a_loop_that_explores_or_shows_the_baseline_is_left_alone(config: dict[str, object]) -> None:
    made = bandit(**config)
    for k in range(exploring.ENOUGH + 50):
        decide(made, ask(f"e{k}", f"user-{k % 9}", "ab"))
        made.reward(f"e{k}", 1.0, START)
    assert exploring.warning(made.statistics, made.config, made.now) is None


def test_it_is_said_once_in_the_log_and_once_when_it_is_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "coterie.service")

    async def work(coordinator: Coordinator) -> None:
        for k in range(exploring.ENOUGH):
            await coordinator.rank(ask(f"e{k}"))
        for _ in range(3):
            await coordinator.background.tick()
        assert coordinator.background.stopped_exploring
        await coordinator.configure(Config(exploration=0.5, explore="epsilon"))
        for k in range(40):
            await coordinator.rank(ask(f"f{k}"))
        for _ in range(3):
            await coordinator.background.tick()
        assert not coordinator.background.stopped_exploring

    with_coordinator(settings_of(tmp_path / "log.db", Config(exploration=0.0)), work, Clock())
    said = [record.message for record in caplog.records if "explor" in record.message]
    assert len(said) == 2
    assert said[0].startswith("the loop stopped exploring")
    assert said[1] == "the loop explores again"


def guesses(coordinator: Coordinator) -> list[int]:
    """Return the best guesses of all decisions, as they were."""
    records = [coordinator.sequencer.read(event.position) for event in coordinator.bandit.events.values()]
    return [record.best for record in records if isinstance(record, Rank)]


def test_best_guesses_that_would_be_others_now_are_counted(tmp_path: Path) -> None:
    """The first ten decisions preferred "a", which was all that had paid; then "b" paid, for everybody."""

    async def work(coordinator: Coordinator) -> None:
        assert coordinator.background.guess_changes is None
        await coordinator.background.ask_again()
        assert coordinator.background.guess_changes is None  # nothing can be asked again
        for k in range(20):
            await coordinator.rank(ask(f"e{k}", f"user-{k % 5}", "ab", baseline="a"))
            await coordinator.reward(f"e{k}", 0.0)
        await coordinator.background.ask_again()
        before = coordinator.background.guess_changes
        assert before is not None
        best = guesses(coordinator)
        for k in range(60):
            record = await coordinator.rank(ask(f"f{k}", f"user-{k % 5}", "ab"))
            await coordinator.reward(f"f{k}", float(record.choice == 1))
        position = coordinator.bandit.position
        await coordinator.background.ask_again()
        assert coordinator.bandit.position == position  # asking records nothing
        after = [coordinator.bandit.what_if(ask(f"e{k}", f"user-{k % 5}", "ab"))[0].best for k in range(20)]
        assert after == [1] * 20
        changed = [coordinator.bandit.what_if(ask(f"f{k}", f"user-{k % 5}", "ab"))[0].best for k in range(60)]
        later = guesses(coordinator)
        right = sum(old != new for old, new in zip(later, [*after, *changed], strict=True)) / 80
        assert coordinator.background.guess_changes == pytest.approx(right)
        assert 0 < right < 1
        assert best == later[:20]

    with_coordinator(settings_of(tmp_path / "log.db", Config(exploration=0.3)), work, Clock())


def test_decisions_to_ask_again_are_spread_over_the_last_hour() -> None:
    made = bandit()
    decide(made, ask("old"), START)
    for k in range(350):
        decide(made, ask(f"e{k}"), START + exploring.SPAN * MINUTE + k)
    positions = exploring.to_ask(made)
    assert len(positions) == exploring.ASKED
    assert made.events["old"].position not in positions
    assert max(positions) - min(positions) > 250


def test_the_metrics_tell_it(tmp_path: Path) -> None:
    with client_of(tmp_path, config=Config(exploration=0.0, policy="linucb", holdback=0.3)) as client:
        text = client.get("/metrics").text
        assert "coterie_decision_entropy_bits NaN" in text
        assert "coterie_best_guess_changes NaN" in text
        assert "coterie_exploring 1.0" in text
        for k in range(2 * exploring.ENOUGH):
            body = {"user": f"user-{k % 200}", "actions": [{"id": "a"}, {"id": "b"}], "eventId": f"e{k}"}
            client.post("/v1/rank", json=body)
            if k < 20:
                client.post(f"/v1/events/e{k}/reward", json={"value": 1})
        text = client.get("/metrics").text
        found = client.get("/v1/statistics").json()
    assert "coterie_exploring 0.0" in text
    assert "coterie_decision_entropy_bits 0.0" in text
    assert "coterie_decisions 400.0" in text
    assert 'coterie_arm_payoffs{arm="holdback"}' in text
    assert "stopped exploring" in found["warning"]
    assert found["total"]["entropy"] == 0


# Apprentice mode.


def test_apprentice_mode_tells_how_often_it_agrees_and_what_it_would_earn() -> None:
    """Ann's baseline "a" pays 0.8, and is soon the best guess: what it would earn is all but known."""
    made = bandit(mode="apprentice")
    rng = np.random.default_rng(3)
    for k in range(400):
        decide(made, ask(f"e{k}", f"user-{k % 7}", "abc"))
        made.reward(f"e{k}", float(rng.random() < 0.8), START)
    found = curve.point(made.statistics.total)
    assert found.agreement is not None
    assert 0.85 < found.agreement <= 1
    assert found.would_earn == pytest.approx(0.8, abs=0.05)
    assert found.would_earn_interval is not None
    assert found.would_earn_interval.low < 0.8 < found.would_earn_interval.high


def test_what_apprentice_mode_would_earn_is_unknown_where_it_disagrees() -> None:
    """The baseline is "b" in 4 of 5 decisions, which never pays, and else "a", which does and is the best guess."""
    made = bandit(mode="apprentice")
    for k in range(300):
        baseline = "b" if k % 5 else "a"
        decide(made, ask(f"e{k}", f"user-{k % 7}", "abc", baseline=baseline))
        made.reward(f"e{k}", float(baseline == "a"), START)
    found = curve.point(made.statistics.total)
    assert found.agreement is not None
    assert found.agreement < 0.5
    assert found.would_earn is None
    assert found.would_earn_interval is None or found.would_earn_interval.high > 0.9


def test_online_nothing_is_foretold() -> None:
    made = bandit(exploration=0.1)
    for k in range(100):
        decide(made, ask(f"e{k}", "ann", "ab"))
        made.reward(f"e{k}", 1.0, START)
    found = curve.point(made.statistics.total)
    assert found.agreement is not None
    assert (found.would_earn, found.would_earn_interval) == (None, None)
