"""The service with the learned prior over shards: the same answers, also together and while a shard is rebuilt."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from coterie import Hierarchical
from coterie.engines import Local
from coterie.engines.people import ShardedPeople
from coterie.service.core.coordinator import Coordinator, ranking_of
from coterie.service.core.engine import Engine
from coterie.service.log.recovery import recover
from coterie.service.settings import Config
from tests.engines.test_sharded import Engine as Frail
from tests.playing import assert_same_tensors
from tests.service.core.test_shards import questions
from tests.service.helpers import ask, opened, settings_of, with_coordinator


def run(path: Path, work: Any, shards: Any = None) -> Any:
    """Let `work` use a coordinator whose clock stands."""
    config = Config(policy="hierarchical", exploration=0.2, dimensions=8)
    return with_coordinator(settings_of(path, config), work, shards=shards)


def policies(made: Engine) -> list[Hierarchical]:
    found = [policy for policy in (made.items, made.vectors) if isinstance(policy, Hierarchical)]
    assert len(found) == 2
    return found


def test_a_replay_of_the_log_is_the_same_model_on_any_number_of_shards(tmp_path: Path) -> None:
    async def work(coordinator: Coordinator) -> None:
        for question in questions(60):
            await coordinator.rank(question)
            await coordinator.reward(question.event, 1.0 if question.actions[0].id < "d" else 0.0)
        await coordinator.forget("user 3")

    run(tmp_path / "log.db", work)
    with opened(tmp_path / "log.db") as store:
        for shards in (1, 2, 4, 7):
            one, many = recover(store, True), recover(store, True, Local(shards))
            for mine, others in zip(policies(one), policies(many), strict=True):
                assert isinstance(others.models, ShardedPeople)
                assert_same_tensors(mine, others)


def test_what_arrives_together_goes_out_together_and_is_answered_as_alone(tmp_path: Path) -> None:
    asked: list[int] = []
    prepare = Hierarchical.prepare

    def counting(self: Hierarchical, users: Any) -> None:
        asked.append(len(users))
        prepare(self, users)

    async def work(coordinator: Coordinator) -> list[Any]:
        found = []
        for part in range(3):
            batch = questions(40, seed=part)
            if coordinator.shards is not None:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(Hierarchical, "prepare", counting)
                    found += await asyncio.gather(*(coordinator.rank(question) for question in batch))
            else:
                found += [await coordinator.rank(question) for question in batch]
            for question in batch:
                await coordinator.reward(question.event, 1.0 if question.actions[0].id < "d" else 0.0)
        if coordinator.shards is not None:
            await coordinator.rebalance(5)
            assert all(policy.models.shards == 5 for policy in policies(coordinator.engine))
        return [(one.event, one.order, one.choice, one.probability) for one in found]

    alone = run(tmp_path / "alone.db", work)
    together = run(tmp_path / "together.db", work, Local(3))
    assert together == alone
    assert sum(asked) == 120
    assert len(asked) <= 3 * 4  # ids and features apart, and whatever a busy machine makes late


def test_a_partial_answer_says_so_and_nothing_is_lost(tmp_path: Path) -> None:
    home = Frail(3, "partial")

    async def work(coordinator: Coordinator) -> None:
        for question in questions(30, features=False):
            await coordinator.rank(question)
            await coordinator.reward(question.event, 1.0)
        made: Any = coordinator.engine.items
        made._remote.clear()  # no user is cached
        home.crew.dead |= {0, 1, 2}
        home.crew.held = True
        partial = ranking_of(await coordinator.rank(ask("while down", user="user 1"))).partial
        assert partial is not None
        assert (partial.users, partial.of) == (0, 3)
        assert await coordinator.reward("while down", 1.0) == "applied"
        assert len(made.waiting) == 1
        home.crew.held = False
        again = ranking_of(await coordinator.rank(ask("after", user="user 1")))
        assert again.partial is None
        assert not made.waiting

    run(tmp_path / "log.db", work, home)
    with opened(tmp_path / "log.db") as store:
        assert recover(store, from_empty=True).learned == 31
