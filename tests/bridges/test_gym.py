"""Worlds, datasets and logs as environments of Gymnasium itself."""

import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import polars as pl
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from coterie import CAB, Random
from coterie.bridges import FromFunction, environment
from coterie.data import WORLDS
from coterie.data.datasets import open_dataset
from coterie.data.logs.log import open_log
from coterie.data.worlds.world_as_dataset import Rest, Stage
from coterie.errors import MissingExtraError, ParameterError
from coterie.experiments import play
from tests.miniature import write_lastfm

N = 40


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path / "cache"))


def by_ids() -> pl.DataFrame:
    rows = [(f"user {t % 3}", "abcd"[t * 7 % 4], t % 2) for t in range(60)]
    return pl.DataFrame(rows, schema=["user", "item", "payoff"], orient="row")


def by_features() -> pl.DataFrame:
    rows = [(t % 3, [0.5, (t * 7 % 4) / 4], (t % 3 - 1)) for t in range(60)]
    return pl.DataFrame(rows, schema=["user", "features", "payoff"], orient="row")


@cache
def likes() -> Any:
    with TemporaryDirectory() as folder:
        write_lastfm(Path(folder))
        data = open_dataset("lastfm", folder=folder, verify=False, components=5, n_candidates=4, n_rounds=N)
        assert data.n_items  # read while it is there
    return data


PLACES: dict[str, Any] = {
    "likes": likes,
    **{name: WORLDS[name] for name in ("music-and-news", "dense", "sparse", "turnover", "drifting")},
    "by ids": lambda: open_log(by_ids(), draw="uniform"),
    "by features": lambda: open_log(by_features(), draw="uniform"),
    "part of a log": lambda: Rest(open_log(by_ids(), draw="uniform"), 10),
    "rest of a world": lambda: Rest(Stage("dense", WORLDS["dense"](), 100), 10),
}


@pytest.mark.parametrize("name", PLACES)
def test_gymnasium_finds_nothing_wrong(name: str) -> None:
    check_env(environment(PLACES[name](), n_rounds=N), skip_render_check=True)


@pytest.mark.parametrize("name", PLACES)
def test_an_episode_is_the_rounds_of_that_seed(name: str) -> None:
    place = PLACES[name]()
    env = environment(place, n_rounds=N, seed=5)
    observation, info = env.reset()
    for t, now in enumerate(place.rounds(N, 5)):
        assert env.observation_space.contains(observation)
        assert info["user"] == now.user
        assert np.all(info["contexts"] == now.contexts)
        observation, reward, terminated, truncated, info = env.step(1)
        known = not np.isnan(now.payoffs[1])
        assert (reward, info["kept"]) == (now.payoffs[1] if known else 0.0, known)
        if not getattr(place, "is_log", False):
            assert (info["expected"], info["best"]) == (now.expected[1], now.expected.max())
        assert (terminated, truncated) == (False, t == N - 1)
    with pytest.raises(ParameterError, match="the episode is over"):
        env.step(0)


def test_a_policy_plays_there_as_in_our_own_loop() -> None:
    policy, twin = Random(one_hot=True, seed=1), Random(one_hot=True, seed=1)
    env = environment("clicks", n_rounds=200, seed=2)
    _, info = env.reset()
    earned, truncated = [], False
    while not truncated:
        user, contexts = info["user"], info["contexts"]
        k = policy.choose(user, contexts)
        _, reward, _, truncated, info = env.step(k)
        policy.learn(user, contexts[k], reward)
        earned.append(reward)
    assert earned == [row.payoff for row in play(twin, WORLDS["clicks"]().rounds(200, 2))]


def test_an_agent_of_observations_is_a_policy_elsewhere() -> None:
    env = environment(by_features(), n_rounds=N)

    def agent(observation: dict[str, Any]) -> int:
        assert env.observation_space.contains(observation)
        return int(np.argmax(observation["contexts"][:, 1]))

    policy = FromFunction(on_choose=lambda user, x: agent(env.observe(user, x)), n_features=2)
    assert policy.choose(2, [[0.1, 0.2], [0.1, 0.3]]) == 1


def test_numbers_of_a_log_follow_first_sight() -> None:
    """Users come as user 0, user 1, user 2; items as a, d, c, b."""
    env = environment(by_ids(), n_rounds=3)
    assert env.observation_space["user"] == spaces.Discrete(3)  # type: ignore[index]
    assert env.observation_space["contexts"] == spaces.MultiDiscrete([4, 4])  # type: ignore[index]
    assert env.observe("user 2", ["c", "a"])["contexts"].tolist() == [2, 0]
    assert env.observe("user 2", ["c", "a"])["user"] == 2
    with pytest.raises(ParameterError, match="user 'eve' is not in this environment"):
        env.observe("eve", ["a", "b"])


def test_seeds_change_from_episode_to_episode_and_come_back() -> None:
    env = environment("clicks", n_rounds=5, seed=1)

    def first(seed: int | None = None) -> list[int]:
        return list(env.reset(seed=seed)[0]["contexts"])

    one, two, three = first(), first(), first()
    assert len({tuple(one), tuple(two), tuple(three)}) == 3
    assert first(1) == one
    assert first() == two


def test_a_world_ends_after_so_many_rounds_and_a_log_with_its_last() -> None:
    assert environment("clicks").n_rounds == 10_000
    assert environment("clicks", n_rounds=20_000).n_rounds == 20_000
    assert environment(open_log(by_ids(), draw="uniform"), n_rounds=1000).n_rounds == 60


def test_wrong_calls_are_told() -> None:
    with pytest.raises(ParameterError, match="place is a int, expected a world, a log, a table, or the name"):
        environment(3)
    with pytest.raises(ParameterError, match="n_rounds is 0, expected a whole number of at least 1"):
        environment("clicks", n_rounds=0)
    env = environment("clicks", n_rounds=5)
    with pytest.raises(ParameterError, match="the episode is over, or has not begun; call reset first"):
        env.step(0)
    env.reset()
    with pytest.raises(ParameterError, match=r"action is 99, expected a position from 0 to \d+"):
        env.step(99)


def test_without_gymnasium_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "coterie.bridges.gym", raising=False)
    monkeypatch.delitem(sys.modules["coterie.bridges"].__dict__, "environment", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    from coterie import bridges

    with pytest.raises(
        MissingExtraError, match=r"an environment needs gymnasium: pip install 'coterie\[gym\]'"
    ):
        bridges.environment  # noqa: B018
    assert CAB.name == "cab"
