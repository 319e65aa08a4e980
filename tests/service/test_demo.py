"""The demo's crowd is alive: it decides, earns, and the policy does better than chance."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from coterie.data.logs.rules import Config
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.core.bandit import Bandit
from coterie.service.core.question import Question
from coterie.service.demo import HELD_BACK, ITEMS, KINDS, USERS, Crowd, live
from coterie.service.settings import Settings
from coterie.service.trial.intervals import interval, unweighted
from coterie.service.trial.report import report
from tests.service.helpers import START, settings_of, with_coordinator

MINUTE = 2400  # visits of the demo's first minute, at 40 a second


def test_the_crowd_ranks_and_rewards(tmp_path: Path) -> None:
    async def work(coordinator: Coordinator) -> None:
        task = asyncio.create_task(live(coordinator, rate=2000.0))
        while coordinator.bandit.statistics.total.learned < 40:
            assert not task.done()
            await asyncio.sleep(0.02)
        task.cancel()

    with_coordinator(settings_of(tmp_path / "log.db"), work)


def test_visitors_of_a_kind_share_their_tastes() -> None:
    crowd = Crowd(0)
    user, actions = crowd.visitor()
    assert user.startswith("visitor-")
    assert len(actions) == 6
    share = sum(crowd.clicks("visitor-001", "jazz") for _ in range(2000)) / 2000
    assert abs(share - crowd.tastes[1 % KINDS][0]) < 0.05
    assert USERS > KINDS


@pytest.fixture(scope="module", params=[0, 1, 2])
def first_minute(request: pytest.FixtureRequest) -> tuple[Bandit, list[bool], list[float], Crowd]:
    """Return the loop, the champion's clicks, their probabilities and the crowd after a minute's visits.

    The time at which it begins, and the secret, draw those who are held back.
    """
    crowd, made, clicks, chances = Crowd(0), Bandit(), [], []
    made.secret = b"of this test"  # a new one would draw others in each run
    made.configure(Config(holdback=HELD_BACK), START - request.param)
    for k in range(MINUTE):
        user, actions = crowd.visitor()
        record = made.rank(Question(f"visit-{k}", user, actions), START + 25 * k)
        item = record.actions[record.choice]  # type: ignore[union-attr]
        clicked = crowd.clicks(user, item)
        made.reward(record.event, float(clicked), START + 25 * k)  # type: ignore[union-attr]
        if record.arm == "champion":
            clicks.append(clicked)
            chances.append(crowd.chance(user, item))
    return made, clicks, chances, crowd


def test_the_demo_learns_within_its_first_minute(
    first_minute: tuple[Bandit, list[bool], list[float], Crowd],
) -> None:
    """A uniform choice earns the average of the tastes; after a quarter of the visits ours is above it for sure."""
    _, clicks, chances, crowd = first_minute
    uniform = float(np.mean(crowd.tastes))
    assert len(ITEMS) * KINDS == np.size(crowd.tastes)
    early = clicks[: len(clicks) // 4]
    n, k = len(early), sum(early)
    found = interval(unweighted(n, k, k), 0)
    assert found is not None
    assert found.low > uniform
    assert np.mean(clicks[-500:]) > uniform + 0.08
    assert np.mean(chances[-500:]) > np.mean(chances[:200])  # and it goes on


def test_the_demo_has_a_lift_to_tell_within_its_first_minute(
    first_minute: tuple[Bandit, list[bool], list[float], Crowd],
) -> None:
    made, *_ = first_minute
    found = report(made.trial, made.config, made.now)
    assert found is not None
    assert [(lift.arm, lift.against, lift.verdict) for lift in found.lifts] == [
        ("champion", "holdback", "better")
    ]


@pytest.mark.parametrize("named", [False, True])
def test_the_demo_holds_visitors_back_unless_the_settings_name_it(tmp_path: Path, named: bool) -> None:
    async def work(coordinator: Coordinator) -> None:
        task = asyncio.create_task(live(coordinator, rate=2000.0))
        while coordinator.bandit.statistics.total.learned < 5:
            assert not task.done()
            await asyncio.sleep(0.02)
        task.cancel()
        assert (coordinator.bandit.trial is None) == named

    given = frozenset(["config", "config.holdback"]) if named else frozenset()
    with_coordinator(Settings(store=str(tmp_path / "log.db"), given=given), work)
