"""Compares choices on a device with those of NumPy, round by round, with learning; needs no compiler."""

from typing import Any, NamedTuple

import jax
import numpy as np

from coterie.arrays import Floats
from coterie.engines.device import sweep
from coterie.engines.device.blocks import Asked, Blocks, Question
from coterie.engines.device.plain import Plain
from coterie.engines.device.sweep import ROUNDING, TIE, Rounds, rules


class World(NamedTuple):
    """The items, and the rounds of each run."""

    table: Floats  # (items, features)
    rounds: Rounds


def make_world(runs: int, users: int, features: int, candidates: int, rounds: int, seed: int) -> World:
    """Return rounds of users in ten groups with equal tastes; a payoff is 1 or 0."""
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(1_000, features))
    table /= 1.0001 * np.linalg.norm(table, axis=1, keepdims=True)
    likes = table @ rng.normal(size=(10, features)).T > 1.0  # (items, groups)
    who = rng.integers(users, size=(rounds, runs)).astype(np.int32)
    shown = rng.integers(len(table), size=(rounds, runs, candidates)).astype(np.int32)
    payoffs = likes[shown, (who % 10)[..., None]].astype(np.float64)
    return World(table, Rounds(who, shown, payoffs, np.full(who.shape, -1, np.int32)))


def check(device: Any, rounds: int = 2_000, users: int = 300) -> str:
    """Compare choices and counts of updated users; raise if any differs, and report what was compared."""
    world = make_world(1, users, 25, 25, rounds, seed=4)
    shared = _check_blocks(device, world, users)
    runs = 4
    several = make_world(runs, 100, 25, 25, rounds // 4, seed=5)
    also = _check_sweep(device, several, 100)
    both = f"{rounds:,} rounds and {runs} × {rounds // 4:,} side by side"
    return f"{both}; {shared:,} and {also:,} were shared: all equal"


def _check_blocks(device: Any, world: World, users: int) -> int:
    """Play one run round by round; return in how many rounds more than one user was updated."""
    plain = Plain(users, world.table.shape[1], 0.05, 0.4, ROUNDING, TIE)
    blocks = Blocks(world.table.shape[1], device, 128)
    blocks.reserve(users)
    row_of: dict[int, int] = {}
    shared = 0
    for user, shown, payoffs in zip(*(part[:, 0] for part in world.rounds[:3]), strict=True):
        contexts, scale = world.table[shown], plain.scale
        norms = np.linalg.norm(contexts, axis=1)
        row = row_of.get(int(user))
        question = Question(-1 if row is None else row, contexts, np.stack([np.zeros(len(norms)), norms]))
        own, (members, estimates, spreads) = blocks.look([question], scale, ROUNDING, len(row_of))
        if row is None:
            members, spreads = members + 1, spreads + norms
        score = (estimates + scale * spreads) / members
        choice = int(np.argmax(score.max() - score < TIE))
        _same("choice", choice, plain.choose(user, contexts))
        x, payoff = contexts[choice], float(payoffs[choice])
        learners = 0
        if scale * own[1, choice] < plain.limit:
            k = slice(choice, choice + 1)
            asked = Asked(contexts[k], own[0, k], scale * own[1, k] + ROUNDING, scale)
            learners = blocks.share(asked, payoff, plain.limit, -1 if row is None else row)
        elif row is not None:
            blocks.learn(row, x, payoff, fresh=False)
            learners = 1
        if row is None:
            row_of[int(user)] = len(row_of)
            blocks.learn(row_of[int(user)], x, payoff, fresh=True)
            learners += 1
        _same("learners", learners, plain.learn(user, x, payoff))
        shared += learners > 1
    return shared


def _check_sweep(device: Any, world: World, users: int) -> int:
    """Play several runs side by side."""
    rounds, runs = world.rounds.users.shape
    alpha, gamma = np.array([0.0, 0.02, 0.05, 0.2])[:runs], np.array([0.2, 0.2, 0.4, 0.2])[:runs]
    with jax.enable_x64(True):
        given = jax.device_put((world.rounds, world.table), device)
        with jax.default_device(device):
            models = jax.device_put(sweep.start(runs, users, world.table.shape[1]), device)
        learned = jax.device_put(np.zeros(runs, np.int32), device)
        played = sweep.play(models, learned, *given, rules(alpha, gamma, rounds), sweep.code_for(device), 64)[
            2
        ]
        choice, updated = np.asarray(played.choice), np.asarray(played.updated)
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
