"""The demo's crowd is alive: it decides, earns, and the policy does better than chance."""

import asyncio
from pathlib import Path

from coterie.service.core.coordinator import Desk
from coterie.service.demo import KINDS, USERS, Crowd, live
from tests.service.helpers import settings_of, with_desk


def test_the_crowd_ranks_and_rewards(tmp_path: Path) -> None:
    async def work(desk: Desk) -> None:
        task = asyncio.create_task(live(desk, rate=2000.0))
        while desk.engine.statistics.total.learned < 40:
            assert not task.done()
            await asyncio.sleep(0.02)
        task.cancel()

    with_desk(settings_of(tmp_path / "log.db"), work)


def test_visitors_of_a_kind_share_their_tastes() -> None:
    crowd = Crowd(0)
    user, actions = crowd.visitor()
    assert user.startswith("visitor-")
    assert len(actions) == 6
    share = sum(crowd.clicks("visitor-001", "jazz") for _ in range(2000)) / 2000
    assert abs(share - crowd.tastes[1 % KINDS][0]) < 0.05
    assert USERS > KINDS
