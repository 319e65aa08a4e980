"""A Gymnasium environment from any world, dataset or log.

A step is a round. The observation is a dict: `user`, a number, and `contexts`, the features of each candidate or, if
items have ids only, each candidate's number. The action is the position of a candidate. As in any contextual bandit,
rounds do not depend on earlier actions, so an episode is truncated, never terminated.

A log is replayed by rejection (Li et al., 2011): an action other than the logged one earns 0, and `info["kept"]` is
False; such steps should be neither learned nor counted. `coterie.data.logs.lists` says why.
"""

from collections.abc import Hashable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

import numpy as np

from coterie.arrays import JsonObject
from coterie.data.datasets import Source
from coterie.data.rounds import Round
from coterie.errors import MissingExtraError, ParameterError
from coterie.experiments.run.worlds import open_world
from coterie.models.actions import Actions
from coterie.models.candidates import project

if find_spec("gymnasium") is None:
    raise MissingExtraError("an environment needs gymnasium: pip install 'coterie[gym]'")

import gymnasium
from gymnasium import spaces

N_ROUNDS = 10_000  # of a world, which is endless
MOST = np.iinfo(np.int64).max

Observation = JsonObject


def environment(place: Any, *, n_rounds: int | None = None, seed: int = 0) -> "BanditEnvironment":
    """Return a Gymnasium environment whose episodes are the rounds of a world, a dataset or a log.

    `place` is a world or what `open_log` returns; or the name of a built-in world or a dataset, the path of a log, or
    a table from pandas, polars or Arrow. `n_rounds` is the length of an episode: by default all rounds of a log or a
    dataset, and 10,000 of a world. `reset(seed=…)` plays the rounds that `coterie compare --seed …` plays; the first
    `reset()` takes `seed`, and later ones draw new seeds.

    `info` has the round as policies see it: `user`, `contexts`, and the users who `joined` and `left`. After a step
    it also has `kept`, False if the log has no payoff of the action, and, if the truth is known, the expected payoffs
    of the action and of the best one, `expected` and `best`.

    >>> env = environment("clicks", n_rounds=100, seed=1)
    >>> observation, info = env.reset()
    >>> observation, reward, terminated, truncated, info = env.step(0)
    >>> sorted(observation), terminated, truncated, info["kept"]
    (['contexts', 'user'], False, False, True)
    """
    return BanditEnvironment(_opened(place), n_rounds, seed)


@final
class BanditEnvironment(gymnasium.Env[Observation, Any]):
    """Rounds as a Gymnasium environment; `environment` makes it."""

    metadata: JsonObject = {"render_modes": []}  # noqa: RUF012

    def __init__(self, place: Any, n_rounds: int | None = None, seed: int = 0) -> None:
        longest = getattr(place, "n_rounds", None)
        self.n_rounds = min(n_rounds or longest or N_ROUNDS, longest or n_rounds or N_ROUNDS)
        for name, value, least in (("n_rounds", n_rounds, 1), ("seed", seed, 0)):
            if value is not None and value < least:
                raise ParameterError(f"{name} is {value!r}, expected a whole number of at least {least}")
        self.place = place
        self._seed: int | None = seed
        self._users = _user_numbers(place)
        self._items = _item_numbers(place)
        whole = _whole(place)
        n_candidates = getattr(whole, "n_candidates", None) or whole.parameters()["n_candidates"]
        self.action_space = spaces.Discrete(n_candidates)
        user, contexts = self._user_space(), self._contexts_space(n_candidates)
        self.observation_space = spaces.Dict({"user": user, "contexts": contexts})
        self._rounds: Iterator[Round] = iter(())
        self._round: Round | None = None
        self._left = 0  # rounds of the episode

    def _user_space(self) -> spaces.Space[Any]:
        if self._users is None:
            return spaces.Box(0, MOST, shape=(), dtype=np.int64)
        return spaces.Discrete(len(self._users))

    def _contexts_space(self, n_candidates: int) -> spaces.Space[Any]:
        if self._items is not None:
            return spaces.MultiDiscrete([len(self._items)] * n_candidates)
        return spaces.Box(-1.0, 1.0, shape=(n_candidates, self.place.n_features), dtype=np.float32)

    def reset(
        self, *, seed: int | None = None, options: JsonObject | None = None
    ) -> tuple[Observation, JsonObject]:
        """Begin an episode, and return its first observation and info."""
        chosen = self._seed if seed is None else seed
        super().reset(seed=chosen)
        if chosen is None:
            chosen = int(self.np_random.integers(2**31))
        self._seed = None
        self._rounds = iter(self.place.rounds(self.n_rounds, chosen))
        self._left = self.n_rounds
        self._round = next(self._rounds)
        return self.observe(self._round.user, self._round.contexts), _info(self._round)

    def step(self, action: Any) -> tuple[Observation, float, bool, bool, JsonObject]:
        """Show the candidate at the position `action`; return the next round's observation and the reward."""
        if self._round is None or not self._left:
            raise ParameterError("the episode is over, or has not begun; call reset first")
        if not self.action_space.contains(action):
            last = len(self._round.payoffs) - 1
            raise ParameterError(f"action is {action!r}, expected a position from 0 to {last}")
        now = self._round
        earned = float(now.payoffs[action])
        kept = earned == earned
        outcome: JsonObject = {"kept": kept}
        if not self.place.is_log:
            outcome |= {"expected": float(now.expected[action]), "best": float(now.expected.max())}
        self._left -= 1
        self._round = then = next(self._rounds, now)
        seen = self.observe(then.user, then.contexts)
        return seen, earned if kept else 0.0, False, not self._left, _info(then) | outcome

    def observe(self, user: Hashable, contexts: Actions) -> Observation:
        """Return the observation of a user and candidates, to use an agent that was trained here elsewhere."""
        number = int(user) if self._users is None else self._users.get(user)  # type: ignore[call-overload]
        if number is None:
            raise ParameterError(f"user {user!r} is not in this environment")
        shown: Any
        if self._items is not None:
            shown = np.array([self._items[item] for item in contexts], dtype=np.int64)
        else:
            shown = np.clip(project(contexts, "features"), -1, 1).astype(np.float32)
        return {"user": np.int64(number) if self._users is not None else np.array(number), "contexts": shown}


def _opened(place: Any) -> Source:
    if hasattr(place, "rounds"):
        return place  # type: ignore[no-any-return]
    if hasattr(place, "__arrow_c_stream__"):
        from coterie.data.logs.log import open_log

        return open_log(place)
    if not isinstance(place, str | Path):
        kind = type(place).__name__
        raise ParameterError(f"place is a {kind}, expected a world, a log, a table, or the name of one")
    return open_world(str(place))


def _info(now: Round) -> JsonObject:
    return {"user": now.user, "contexts": now.contexts, "joined": list(now.joined), "left": list(now.left)}


def _whole(place: Any) -> Any:
    """Return the world or dataset of a part or a stage."""
    while "of" in vars(place) or "world" in vars(place):
        place = vars(place).get("of") or vars(place)["world"]
    return place


def _user_numbers(place: Any) -> dict[Hashable, int] | None:
    """Return each user's number; None if users are numbers and new ones keep joining."""
    whole = _whole(place)
    users: Any
    if hasattr(whole, "every_record"):
        users = whole.every_record().users
    elif hasattr(whole, "content"):
        found = whole.content
        users = found.user_ids if hasattr(found, "user_ids") else found.users
    elif getattr(whole, "turnover", 0):
        return None
    else:
        users = np.arange(whole.population.n_users)
    return {user: k for k, user in enumerate(dict.fromkeys(users.tolist()))}


def _item_numbers(place: Any) -> dict[Hashable, int] | None:
    """Return each item's number if items have ids only; None if they have features."""
    if not place.one_hot:
        return None
    whole = _whole(place)
    items = whole.items if hasattr(whole, "items") else range(whole.n_items)
    return {item: k for k, item in enumerate(items)}
