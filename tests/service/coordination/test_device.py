"""The service over models on a device: the same answers as in one process, and the same model after a replay."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from coterie import CAB
from coterie.data.logs.rules import Challenger, Config
from coterie.engines import open_engine
from coterie.errors import ParameterError
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.core.question import Action, Question
from coterie.service.problems import Problem
from coterie.service.snapshots.recovery import recover
from tests.service.helpers import ask, opened, settings_of, with_coordinator

CONFIG = Config(policy="cab", exploration=0.2, parameters={"alpha": 0.02})
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


def run(path: Path, work: Any, engine: Any = None) -> Any:
    """Let `work` use a coordinator whose clock stands."""
    return with_coordinator(settings_of(path, CONFIG), work, engine=engine)


@pytest.fixture
def device() -> Any:
    """Return JAX's processor as an engine."""
    pytest.importorskip("jax", reason="jax is not installed (the extra gpu)")
    return open_engine("cuda?device=cpu&block=16")


def test_answers_and_replays_on_a_device_are_those_of_one_process(tmp_path: Path, device: Any) -> None:
    async def work(coordinator: Coordinator) -> list[Any]:
        found = []
        for question in questions(60):
            found.append(await coordinator.rank(question))
            await coordinator.reward(question.event, 1.0 if question.actions[0].id < "d" else 0.0)
        await coordinator.forget("user 3")
        return [(one.event, one.order, one.choice, one.probability) for one in found]

    assert run(tmp_path / "device.db", work, device) == run(tmp_path / "here.db", work)
    with opened(tmp_path / "device.db") as store:
        for from_empty in (True, False):
            here, there = recover(store, from_empty), recover(store, from_empty, device)
            one, other = here.policies.made["vectors"], there.policies.made["vectors"]
            assert isinstance(one, CAB)
            assert isinstance(other, CAB)
            assert other.engine is device
            assert one.learned == other.learned
            mine, theirs = one.tensors(), other.tensors()
            assert mine["updated"].tobytes() == theirs["updated"].tobytes()
            assert mine["weights"] == pytest.approx(theirs["weights"], abs=1e-12)


def test_what_is_wrong_with_one_question_is_said_to_that_one_only(tmp_path: Path) -> None:
    async def work(coordinator: Coordinator) -> None:
        good, twin = ask("good"), ask("good")
        bad = ask("bad", excluded=frozenset("abc"))
        other = ask("good", user="bob")
        found = await asyncio.gather(*map(coordinator.rank, (good, bad, twin, other)), return_exceptions=True)
        assert isinstance(found[1], Problem)
        assert found[1].code == "no_action_left"
        # Whichever body of the event comes first is decided; the other one is told so.
        refused = [isinstance(one, Problem) and one.status == 409 for one in (found[0], found[2], found[3])]
        assert refused in ([False, False, True], [True, True, False])

    run(tmp_path / "log.db", work)


def test_what_cannot_be_kept_on_a_device_is_refused(tmp_path: Path, device: Any) -> None:
    async def work(coordinator: Coordinator) -> None:
        with pytest.raises(ParameterError, match="'linucb' cannot be kept on a device"):
            await coordinator.configure(Config(policy="linucb"))
        for name, value in {"thompson": True, "half_life": 100}.items():
            with pytest.raises(ParameterError, match=name):
                await coordinator.configure(Config(policy="cab", parameters={name: value}))
        with pytest.raises(ParameterError, match="'linucb' cannot be kept on a device"):
            await coordinator.configure(Config(policy="cab", challenger=Challenger("linucb", 0.1)))

    run(tmp_path / "log.db", work, device)


@pytest.mark.parametrize(
    "text", ["ray?shards=4", "local", "cuda://host", "cuda?colour=red", "cuda?block=x", ""]
)
def test_an_engine_that_cannot_be_read_is_refused_by_name(text: str) -> None:
    with pytest.raises(ParameterError, match="expected cuda, if need be with"):
        open_engine(text)
