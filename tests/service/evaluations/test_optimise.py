"""Automatic optimisation: off by default, on a schedule, and only what is better with confidence is applied."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coterie.data.logs.rules import Config
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.evaluations import job_process, job_queue, schedule
from coterie.service.evaluations.jobs import EvaluatedPolicy, Job, WorkerAnswer
from coterie.service.evaluations.search import candidates
from coterie.service.personalizer import configuration
from coterie.service.personalizer.configuration import ServiceConfiguration
from coterie.service.settings import Settings
from tests.service.helpers import START, Clock, ask, with_coordinator

HOUR = 3_600


def optimising(
    path: Path,
    work: Callable[[Coordinator, job_queue.Evaluations, Clock], Awaitable[None]],
    given: frozenset[str] | None = None,
    **settings: Any,
) -> None:
    """Run with a coordinator, its evaluations, and a clock that is turned by hand."""
    clock = Clock()

    async def go(coordinator: Coordinator) -> None:
        made = job_queue.Evaluations(coordinator)
        await made.start()
        try:
            await work(coordinator, made, clock)
        finally:
            await made.stop()

    with_coordinator(Settings(store=str(path), given=given, **settings), go, clock)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the worker would say: which policy is better, if any."""
    answer: dict[str, Any] = {"verdict": "a verdict", "words": "In words.", "policies": [], "better": None}
    monkeypatch.setattr(job_process.JobProcess, "do", lambda run: WorkerAnswer(dict(answer)))
    return answer


async def done(made: job_queue.Evaluations, job: Job) -> Job:
    async with asyncio.timeout(300):
        while made.find("evaluation", job.id).open:
            await asyncio.sleep(0.01)
    return made.find("evaluation", job.id)


def test_it_is_off_by_default(tmp_path: Path) -> None:
    async def work(coordinator: Coordinator, made: job_queue.Evaluations, clock: Clock) -> None:
        await coordinator.rank(ask("e"))
        clock.turn(1000 * 24 * HOUR)
        assert schedule.schedule_of(coordinator) is None
        assert await schedule.optimise_if_due(coordinator, made) is None
        assert configuration.show(coordinator).is_auto_optimization_enabled is False

    optimising(tmp_path / "log.db", work)


def test_what_is_better_with_confidence_is_applied_and_said(
    tmp_path: Path, said: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async def work(coordinator: Coordinator, made: job_queue.Evaluations, clock: Clock) -> None:
        await coordinator.rank(ask("e"))
        assert await schedule.optimise_if_due(coordinator, made) is None  # the log is too young
        clock.turn(25 * HOUR)
        job = await schedule.optimise_if_due(coordinator, made)
        assert job is not None
        assert {one.source for one in job.policies} == {"current", "search"}
        found = await done(made, job)
        assert (found.retained, found.applied) == (True, None)
        assert coordinator.bandit.config == Config()
        assert "no policy is better with confidence; the current one stays" in caplog.text
        assert await schedule.optimise_if_due(coordinator, made) is None  # not yet again
        clock.turn(24 * HOUR)
        said["better"] = "less exploration"
        job = await schedule.optimise_if_due(coordinator, made)
        assert job is not None
        found = await done(made, job)
        assert (found.retained, found.applied) == (False, "less exploration")
        assert coordinator.bandit.config == Config(parameters={"explore": 0.5})
        assert "hierarchical {'explore': 0.5} was applied. In words." in caplog.text

    with caplog.at_level(logging.INFO, "coterie.service"):
        optimising(tmp_path / "log.db", work, optimise_days=1.0)


def test_a_policy_that_was_changed_meanwhile_stays(tmp_path: Path, said: dict[str, Any]) -> None:
    said["better"] = "less exploration"

    async def work(coordinator: Coordinator, made: job_queue.Evaluations, clock: Clock) -> None:
        await coordinator.configure(Config(parameters={"explore": 0.1}))
        policies = (
            EvaluatedPolicy("current", "hierarchical", {}, "current"),
            EvaluatedPolicy("less exploration", "hierarchical", {"explore": 0.5}, "search"),
        )
        job = await made.make(Job("one", "evaluation", "one", 0, START + 1, START, policies, automatic=True))
        assert (await done(made, job)).retained
        assert coordinator.bandit.config.parameters == {"explore": 0.1}

    optimising(tmp_path / "log.db", work)


def test_a_manual_evaluation_applies_nothing(tmp_path: Path, said: dict[str, Any]) -> None:
    said["better"] = "mine"

    async def work(coordinator: Coordinator, made: job_queue.Evaluations, clock: Clock) -> None:
        policies = (EvaluatedPolicy("mine", "hierarchical", {"explore": 0.5}),)
        job = await made.make(Job("one", "evaluation", "one", 0, START + 1, START, policies))
        assert (await done(made, job)).applied is None
        assert coordinator.bandit.config == Config()

    optimising(tmp_path / "log.db", work)


def test_personalizers_configuration_sets_the_schedule_and_a_start_that_names_it_wins(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    sent = ServiceConfiguration(
        is_auto_optimization_enabled=True,
        auto_optimization_frequency="P2D",
        auto_optimization_start_date="2030-01-01T00:00:00Z",
    )

    async def change(coordinator: Coordinator, made: job_queue.Evaluations, clock: Clock) -> None:
        await configuration.change(coordinator, sent)
        shown = configuration.show(coordinator)
        assert (shown.is_auto_optimization_enabled, shown.auto_optimization_frequency) == (True, "P2D")
        clock.turn(3 * 24 * HOUR)
        assert not schedule.due(coordinator, made, START)  # before its start
        clock.now = 1_893_456_000_000  # 2030
        assert schedule.due(coordinator, made, START)

    async def still(coordinator: Coordinator, made: job_queue.Evaluations, clock: Clock) -> None:
        assert schedule.schedule_of(coordinator) == schedule.Schedule(2 * 24 * HOUR * 1000, 1_893_456_000_000)

    async def off(coordinator: Coordinator, made: job_queue.Evaluations, clock: Clock) -> None:
        assert schedule.schedule_of(coordinator) is None

    optimising(path, change, frozenset())
    optimising(path, still, frozenset())
    optimising(path, off, frozenset({"optimise_days"}), optimise_days=0.0)


def test_only_the_newest_automatic_ones_are_kept(tmp_path: Path, said: dict[str, Any]) -> None:
    async def work(coordinator: Coordinator, made: job_queue.Evaluations, clock: Clock) -> None:
        await coordinator.rank(ask("e"))
        for _ in range(job_queue.AUTOMATIC + 3):
            clock.turn(25 * HOUR)
            job = await schedule.optimise_if_due(coordinator, made)
            assert job is not None
            await done(made, job)
        assert len(made.every("evaluation")) == job_queue.AUTOMATIC + 1

    optimising(tmp_path / "log.db", work, optimise_days=1.0)


def test_candidates_can_be_served_and_are_not_in_force() -> None:
    for config in (Config(), Config(parameters={"explore": 0.5}), Config(policy="linucb")):
        found = candidates(config)
        assert len(found) == 4
        assert all((one.policy, one.parameters) != (config.policy, config.parameters) for one in found)
        assert len({one.name for one in found}) == 4
        assert msgspec.json.decode(msgspec.json.encode(found), type=list[EvaluatedPolicy]) == found
