"""The service over shards: the same answers, also while a shard is being rebuilt."""

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from coterie import CAB, Hierarchical
from coterie.engines import Local
from coterie.engines.address import open_engine
from coterie.engines.sharded import Sharded
from coterie.engines.sharded_users import ShardedUsers
from coterie.errors import ParameterError
from coterie.service.coordination.answers import ranking_of
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.core.bandit import Bandit
from coterie.service.core.question import Action, Question
from coterie.service.log.recovery import recover
from coterie.service.problems import Problem
from coterie.service.settings import Challenger, Config
from tests.engines.test_sharded import Engine as Frail
from tests.engines.test_sharded import assert_same_state
from tests.playing import assert_same_tensors
from tests.service.helpers import ask, opened, settings_of, with_coordinator

FEATURES = ({"tone": "calm", "length": 3}, {"tone": "loud"}, {"length": 1})


def questions(n: int, seed: int = 0, features: bool = True) -> list[Question]:
    """Return questions of a few users, one in three with features."""
    chance = random.Random(seed)
    made = []
    for k in range(n):
        actions: Any = [Action(name) for name in chance.sample("abcdefg", 4)]
        if features and k % 3 == 0:
            actions = [Action(name, (chance.choice(FEATURES),)) for name in chance.sample("abcdefg", 3)]
        made.append(Question(f"event {seed} {k}", f"user {chance.randrange(9)}", actions))
    return made


class Case(NamedTuple):
    """A policy of the service, and how it is kept in shards."""

    config: Config
    policy: type[Any]
    models: type[Any]  # in shards
    same_state: Callable[[Any, Any], None]


CASES = {
    "cab": Case(
        Config(policy="cab", exploration=0.2, parameters={"alpha": 0.02}),
        CAB,
        Sharded,
        assert_same_state,
    ),
    "hierarchical": Case(
        Config(policy="hierarchical", exploration=0.2, dimensions=8),
        Hierarchical,
        ShardedUsers,
        assert_same_tensors,
    ),
}


def run(path: Path, work: Any, shards: Any = None, policy: str = "cab", **more: Any) -> Any:
    """Let `work` use a coordinator whose clock stands."""
    return with_coordinator(settings_of(path, CASES[policy].config, **more), work, shards=shards)


def policies(made: Bandit, kind: type[Any] = CAB) -> list[Any]:
    found = [policy for policy in (made.policies.items, made.policies.vectors) if isinstance(policy, kind)]
    assert len(found) == 2
    return found


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("shards", [1, 2, 4, 7])
def test_a_replay_of_the_log_is_the_same_model_on_any_number_of_shards(
    tmp_path: Path, shards: int, name: str
) -> None:
    async def work(coordinator: Coordinator) -> None:
        for question in questions(60):
            await coordinator.rank(question)
            await coordinator.reward(question.event, 1.0 if question.actions[0].id < "d" else 0.0)
        await coordinator.forget("user 3")

    case = CASES[name]
    run(tmp_path / "log.db", work, policy=name)
    with opened(tmp_path / "log.db") as store:
        for from_empty in (True, False):
            one, many = recover(store, from_empty), recover(store, from_empty, Local(shards))
            for mine, others in zip(policies(one, case.policy), policies(many, case.policy), strict=True):
                assert isinstance(others.models, case.models)
                case.same_state(mine, others)


def on_a_device() -> Any:
    """Return a bandit on JAX's processor."""
    pytest.importorskip("jax", reason="jax is not installed (the extra gpu)")
    return open_engine("cuda?device=cpu&block=16")


async def ranked_and_rewarded(coordinator: Coordinator, seed: int) -> list[Any]:
    """Answer 40 questions, together if there are shards, and reward them."""
    batch = questions(40, seed=seed)
    if coordinator.shards is None:
        found = [await coordinator.rank(question) for question in batch]
    else:
        found = await asyncio.gather(*map(coordinator.rank, batch))
    for question in batch:
        await coordinator.reward(question.event, 1.0 if question.actions[0].id < "d" else 0.0)
    return found


@pytest.mark.parametrize(
    ("name", "home"), [("cab", lambda: Local(3)), ("cab", on_a_device), ("hierarchical", lambda: Local(3))]
)
def test_what_arrives_together_is_answered_as_alone(tmp_path: Path, name: str, home: Any) -> None:
    case = CASES[name]

    async def work(coordinator: Coordinator) -> list[Any]:
        found = []
        for part in range(3):
            found += await ranked_and_rewarded(coordinator, part)
        if isinstance(coordinator.shards, Local):
            await coordinator.rebalance(5)
            assert all(policy.models.shards == 5 for policy in policies(coordinator.bandit, case.policy))
        return [(one.event, one.order, one.choice, one.probability) for one in found]

    alone = run(tmp_path / "alone.db", work, policy=name)
    together = run(tmp_path / "together.db", work, home(), policy=name)
    assert together == alone


@pytest.mark.parametrize(
    ("name", "rival"), [("cab", "cab"), ("cab", "hierarchical"), ("hierarchical", "cab")]
)
def test_a_challenger_in_shards_decides_as_in_one_process(tmp_path: Path, name: str, rival: str) -> None:
    """Also after users have moved, and after a restart with another number of shards."""
    challenger = Challenger(rival, 0.4, {"alpha": 0.3} if rival == "cab" else {})
    config = msgspec.structs.replace(CASES[name].config, holdback=0.4, challenger=challenger)

    def both(made: Bandit) -> list[Any]:
        assert made.challenger is not None
        return [*policies(made, CASES[name].policy), *policies(made.challenger, CASES[rival].policy)]

    async def work(coordinator: Coordinator) -> list[Any]:
        found = []
        for part in range(3):
            found += await ranked_and_rewarded(coordinator, part)
            if part == 0 and coordinator.shards is not None:
                await coordinator.rebalance(5)
                assert [policy.models.shards for policy in both(coordinator.bandit)] == [5] * 4
        assert {one.arm for one in found} == {"champion", "challenger", "holdback"}
        return [(one.event, one.arm, one.order, one.choice, one.probability) for one in found]

    def played(path: str, home: Any) -> Any:
        return with_coordinator(settings_of(tmp_path / path, config), work, shards=home)

    assert played("shards.db", Local(3)) == played("alone.db", None)
    with opened(tmp_path / "shards.db") as store:
        for from_empty in (True, False):
            one, many = recover(store, from_empty), recover(store, from_empty, Local(2))
            kinds = [name, name, rival, rival]
            for kind, mine, others in zip(kinds, both(one), both(many), strict=True):
                assert isinstance(others.models, CASES[kind].models)
                CASES[kind].same_state(mine, others)


def test_what_is_wrong_with_one_question_is_said_to_that_one_only(tmp_path: Path) -> None:
    async def work(coordinator: Coordinator) -> None:
        good, twin = ask("good"), ask("good")
        bad = ask("bad", excluded=frozenset("abc"))
        other = ask("good", user="bob")
        found = await asyncio.gather(*map(coordinator.rank, (good, bad, twin, other)), return_exceptions=True)
        assert found[0] == found[2]
        assert isinstance(found[1], Problem)
        assert found[1].code == "no_action_left"
        assert isinstance(found[3], Problem)
        assert found[3].status == 409

    run(tmp_path / "log.db", work, Local(2))


def test_a_partial_answer_says_so_and_nothing_is_lost(tmp_path: Path) -> None:
    home = Frail(3, "partial")

    async def work(coordinator: Coordinator) -> None:
        for question in questions(30, features=False):
            await coordinator.rank(question)
            await coordinator.reward(question.event, 1.0)
        home.backend.dead |= {0, 1}
        home.backend.held = True
        record = await coordinator.rank(ask("while down", user="user 1"))
        partial = ranking_of(record).partial
        assert partial is not None
        assert (partial.shards, partial.of) == (1, 3)
        assert await coordinator.reward("while down", 1.0) == "applied"
        made = coordinator.bandit.policies.items
        assert isinstance(made, CAB)
        assert isinstance(made.models, Sharded)
        assert len(made.models.waiting) == 1
        home.backend.held = False
        again = ranking_of(await coordinator.rank(ask("after", user="user 1")))
        assert again.partial is None
        assert not made.models.waiting

    run(tmp_path / "log.db", work, home)
    with opened(tmp_path / "log.db") as store:
        one = recover(store, from_empty=True)
        assert one.policies.learned == 31


def test_a_partial_answer_of_the_learned_prior_says_so_and_nothing_is_lost(tmp_path: Path) -> None:
    home = Frail(3, "partial")

    async def work(coordinator: Coordinator) -> None:
        for question in questions(30, features=False):
            await coordinator.rank(question)
            await coordinator.reward(question.event, 1.0)
        made: Any = coordinator.bandit.policies.items
        made._remote.clear()  # no user is cached
        home.backend.dead |= {0, 1, 2}
        home.backend.held = True
        partial = ranking_of(await coordinator.rank(ask("while down", user="user 1"))).partial
        assert partial is not None
        assert (partial.users, partial.of) == (0, 3)
        assert await coordinator.reward("while down", 1.0) == "applied"
        assert len(made._remote.waiting) == 1
        home.backend.held = False
        again = ranking_of(await coordinator.rank(ask("after", user="user 1")))
        assert again.partial is None
        assert not made._remote.waiting

    run(tmp_path / "log.db", work, home, policy="hierarchical")
    with opened(tmp_path / "log.db") as store:
        assert recover(store, from_empty=True).policies.learned == 31


def test_refusing_is_503_and_the_reward_of_a_decision_before_is_kept(tmp_path: Path) -> None:
    home = Frail(2, "partial")

    async def work(coordinator: Coordinator) -> None:
        for name in ("one", "two"):
            await coordinator.rank(ask(name))
        home.backend.dead.add(0)
        home.backend.held = True
        with pytest.raises(Problem, match="1 of 2 shards are being rebuilt") as refused:
            await coordinator.rank(ask("three"))
        assert refused.value.status == 503
        assert await coordinator.reward("one", 1.0) == "applied"
        home.backend.held = False
        assert ranking_of(await coordinator.rank(ask("three"))).partial is None

    run(tmp_path / "log.db", work, home, when_down="refuse")


def test_a_shard_lost_for_good_stops_writes_until_a_restart(tmp_path: Path) -> None:
    home = Frail(2, "partial")

    async def work(coordinator: Coordinator) -> None:
        await coordinator.rank(ask("one"))
        await coordinator.reward("one", 1.0)
        home.backend.stillborn = True
        home.backend.dead |= {0, 1}
        found = [
            await asyncio.gather(coordinator.rank(ask(f"two {k}")), return_exceptions=True) for k in range(10)
        ]
        assert isinstance(found[-1][0], Problem)
        assert found[-1][0].status == 503
        assert coordinator.refusing is not None

    run(tmp_path / "log.db", work, home)
    with opened(tmp_path / "log.db") as store:
        found = recover(store)  # from the log: no snapshot of half a model was kept
        assert found.policies.learned == 1


def test_users_move_while_ranks_go_on(tmp_path: Path) -> None:
    async def work(coordinator: Coordinator) -> list[Any]:
        found = []
        if coordinator.shards is not None:
            await coordinator.rank(ask("first"))
            moving = asyncio.create_task(coordinator.rebalance(5))
            await asyncio.sleep(0)
            with pytest.raises(Problem, match="moving already"):
                await coordinator.rebalance(2)
        for question in questions(30):
            found.append(await coordinator.rank(question))
            await coordinator.reward(question.event, 1.0)
        if coordinator.shards is not None:
            await moving
            for policy in policies(coordinator.bandit):
                assert isinstance(policy.models, Sharded)
                assert policy.models.shards == 5
        return [(one.event, one.order) for one in found]

    assert run(tmp_path / "one.db", work) == run(tmp_path / "two.db", work, Local(2))


def test_what_cannot_be_kept_in_shards_is_refused(tmp_path: Path) -> None:
    async def work(coordinator: Coordinator) -> None:
        with pytest.raises(ParameterError, match="'linucb' cannot be kept in shards"):
            await coordinator.configure(Config(policy="linucb"))
        for name, value in {"thompson": True, "half_life": 100}.items():
            with pytest.raises(ParameterError, match=name):
                await coordinator.configure(Config(policy="cab", parameters={name: value}))
        with pytest.raises(ParameterError, match="'linucb' cannot be kept in shards"):
            await coordinator.configure(Config(policy="cab", challenger=Challenger("linucb", 0.1)))

    run(tmp_path / "log.db", work, Local(2))


@pytest.mark.parametrize(
    "text", ["locale", "local?shards=x", "local://host", "local?colour=red", "cuda?a", ""]
)
def test_an_engine_that_cannot_be_read_is_refused_by_name(text: str) -> None:
    with pytest.raises(ParameterError, match="expected local, then"):
        open_engine(text)
    assert open_engine("local?shards=3") == Local(3)
