"""The latest decisions follow the log, and are told in stretches."""

from pathlib import Path
from typing import Any

import pytest

from coterie.data.logs.rules import Config
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.reports import latest
from coterie.service.reports.latest import LatestDecisions
from tests.service.helpers import Clock, ask, bandit, settings_of, with_coordinator


def test_the_latest_decisions_follow_the_log_and_are_forgotten_with_it(tmp_path: Path) -> None:
    async def work(coordinator: Any) -> None:
        last = LatestDecisions()
        await coordinator.rank(ask("e1", "ann"))
        await coordinator.reward("e1", 0.5)
        await coordinator.rank(ask("e2", "bob"))
        last.follow(coordinator.store)
        assert [(made.event, made.reward) for made in last.of(coordinator.bandit)] == [
            ("e2", None),
            ("e1", 0.5),
        ]
        assert last.of(coordinator.bandit)[0].members == 1  # ann is surer, and elsewhere
        await coordinator.reward("e2", 1.0)
        last.follow(coordinator.store)
        assert last.of(coordinator.bandit)[0].reward == 1.0
        await coordinator.forget("bob")
        last.follow(coordinator.store)
        assert [made.event for made in last.of(coordinator.bandit)] == ["e1"]
        assert [made.event for made in last.decisions] == ["e1"]

    with_coordinator(settings_of(tmp_path / "log.db", Config(policy="cab")), work, Clock())


def test_the_latest_decisions_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latest, "LATEST", 4)

    async def work(coordinator: Any) -> None:
        last = LatestDecisions()
        for k in range(30):
            await coordinator.rank(ask(f"e{k}"))
            if k % 7 == 0:
                last.follow(coordinator.store)
        last.follow(coordinator.store)
        assert [made.event for made in last.decisions] == ["e26", "e27", "e28", "e29"]
        assert set(last._by_event) == {"e26", "e27", "e28", "e29"}

    with_coordinator(settings_of(tmp_path / "log.db"), work, Clock())


def test_the_latest_decisions_are_told_in_stretches(tmp_path: Path) -> None:
    """120 decisions have two stretches of 50, the newest at the end; what still waits is left out."""

    async def work(coordinator: Coordinator) -> list[latest.Stretch]:
        for k in range(121):
            await coordinator.rank(ask(f"e{k}", "ann", "ab"))
            if k < 120:
                await coordinator.reward(f"e{k}", float(k >= 70))
        last = LatestDecisions()
        last.follow(coordinator.store)
        return latest.stretches(last.of(coordinator.bandit), coordinator.bandit)

    first, second = with_coordinator(settings_of(tmp_path / "log.db"), work, Clock())
    assert (first.decisions, first.payoff, second.decisions, second.payoff) == (50, 0.0, 50, 1.0)
    assert second.payoff_interval is not None
    assert second.payoff_interval.high == 1
    assert latest.stretches([], bandit()) == []
