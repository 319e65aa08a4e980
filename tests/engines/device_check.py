"""Compares choices on a device with those of NumPy: `python -m tests.engines.device_check` on a GPU."""

import math
from typing import Any, final

import numpy as np

from coterie.arrays import Floats
from coterie.bench.suites.cuda import JointWorld, make_world
from coterie.engines.cuda import UserBlocks
from coterie.engines.device import find_device
from coterie.engines.runs import JointRuns
from coterie.models import View
from coterie.models.protocol import ROUNDING, TIE


@final
class Plain:
    """A simple dense CAB in NumPy, over numbered users. Users without updates are not neighbours of others."""

    def __init__(
        self, users: int, n_features: int, alpha: float, gamma: float, rounding: float, tie: float
    ) -> None:
        self.inverses = np.tile(np.eye(n_features), (users, 1, 1))
        self.weights = np.zeros((users, n_features))
        self.updated = np.zeros(users, dtype=np.bool_)
        self.alpha, self.limit, self.rounding, self.tie = alpha, gamma / 4, rounding, tie
        self.learned = 0

    @property
    def scale(self) -> float:
        """The factor of spreads now."""
        return self.alpha * math.sqrt(math.log1p(self.learned + 1))

    def near(self, user: int, contexts: Floats) -> tuple[Any, Floats, Floats]:
        """Return which users are near for each candidate, and all estimates and spreads: (candidates, users)."""
        estimates = contexts @ self.weights.T
        outer = (contexts[:, :, None] * contexts[:, None, :]).reshape(len(contexts), -1)
        spreads = np.sqrt(np.maximum(outer @ self.inverses.reshape(len(estimates.T), -1).T, 0))
        bound = self.scale * (spreads[:, user, None] + spreads) + self.rounding
        near = np.abs(estimates[:, user, None] - estimates) <= bound
        return near & (self.updated | (np.arange(len(self.updated)) == user)), estimates, spreads

    def choose(self, user: int, contexts: Floats) -> int:
        """Return the choice."""
        near, estimates, spreads = self.near(user, contexts)
        score = ((near * estimates).sum(1) + self.scale * (near * spreads).sum(1)) / near.sum(1)
        return int(np.argmax(score.max() - score < self.tie))

    def learn(self, user: int, context: Floats, payoff: float) -> int:
        """Learn a payoff, and return how many users were updated."""
        near, estimates, spreads = (part[0] for part in self.near(user, context[None]))
        learns = np.arange(len(self.updated)) == user
        if self.scale * spreads[user] < self.limit:
            learns = learns | (near & (self.scale * spreads < self.limit))
        for row in np.flatnonzero(learns):
            v = self.inverses[row] @ context
            gain = v / (1 + context @ v)
            self.inverses[row] -= np.outer(gain, v)
            self.weights[row] += gain * (payoff - estimates[row])
        self.updated |= learns
        self.learned += 1
        return int(learns.sum())


def check(device: Any, rounds: int = 2_000, users: int = 300) -> str:
    """Compare choices and counts of updated users; raise if any differs, and report what was compared."""
    world = make_world(1, users, 25, 25, rounds, seed=4)
    shared = check_blocks(device, world, users)
    runs = 4
    several = make_world(runs, 100, 25, 25, rounds // 4, seed=5)
    also = check_runs(device, several, 100)
    both = f"{rounds:,} rounds and {runs} × {rounds // 4:,} side by side"
    return f"{both}; {shared:,} and {also:,} were shared: all equal"


def check_blocks(device: Any, world: JointWorld, users: int) -> int:
    """Play one run round by round; return in how many rounds more than one user was updated."""
    plain = Plain(users, world.table.shape[1], 0.05, 0.4, ROUNDING, TIE)
    blocks = UserBlocks(world.table.shape[1], device, 128)
    blocks.reserve(users)
    row_of: dict[int, int] = {}
    shared = 0
    for user, shown, payoffs in zip(*(part[:, 0] for part in world.rounds[:3]), strict=True):
        contexts, scale = world.table[shown], plain.scale
        norms = np.linalg.norm(contexts, axis=1)
        row = row_of.get(int(user))
        asking = np.full(len(contexts), -1 if row is None else row)
        own, spread, members, estimates, spreads = blocks.look(asking, contexts, scale, len(row_of))
        if row is None:
            members, spreads = members + 1, spreads + norms
        score = (estimates + scale * spreads) / members
        choice = int(np.argmax(score.max() - score < TIE))
        _same("choice", choice, plain.choose(user, contexts))
        x, payoff = contexts[choice], float(payoffs[choice])
        learners = 0
        if scale * spread[choice] < plain.limit:
            view = View(own[[choice]], spread[[choice]])
            learners = blocks.share(x, view, scale, plain.limit, -1 if row is None else row, payoff)
        elif row is not None:
            blocks.learn(row, x, payoff)
            learners = 1
        if row is None:
            row_of[int(user)] = len(row_of)
            blocks.learn(row_of[int(user)], x, payoff)
            learners += 1
        _same("learners", learners, plain.learn(user, x, payoff))
        shared += learners > 1
    return shared


def check_runs(device: Any, world: JointWorld, users: int) -> int:
    """Play several runs side by side."""
    rounds, runs = world.rounds.users.shape
    alpha, gamma = np.array([0.0, 0.02, 0.05, 0.2])[:runs], np.array([0.2, 0.2, 0.4, 0.2])[:runs]
    models = JointRuns(device, alpha.tolist(), gamma.tolist(), users, world.table.shape[1], rounds)
    played = models.play_joint(world.rounds, np.zeros(runs, np.int32), world.table)
    choice, updated = played.choice, played.updated
    for run in range(runs):
        plain = Plain(users, world.table.shape[1], float(alpha[run]), float(gamma[run]), ROUNDING, TIE)
        for t in range(rounds):
            user, contexts = world.rounds.users[t, run], world.table[world.rounds.candidates[t, run]]
            k = plain.choose(user, contexts)
            _same("choice", choice[t, run], k)
            _same(
                "learners", updated[t, run], plain.learn(user, contexts[k], world.rounds.payoffs[t, run, k])
            )
    return int((updated > 1).sum())


def _same(what: str, device: int, plain: int) -> None:
    if device != plain:
        raise AssertionError(f"{what} on the device is {device}, in NumPy {plain}")


if __name__ == "__main__":
    print(check(find_device(None)))
