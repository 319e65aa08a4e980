"""Runs of CAB side by side on a device: each run gives a batch of rounds, and all batches are played together.

See `sweep` for the arithmetic. Every run has its own users, alpha and gamma.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import jax
import numpy as np

from coterie.arrays import Floats, Ints
from coterie.engines.device import sweep
from coterie.engines.device.kernels import Block
from coterie.models.batches import Batch

STEP = 250  # rounds in one call of the device; shorter batches are filled up with rounds without a payoff


class Setting(NamedTuple):
    """The parameters of one run."""

    alpha: float
    gamma: float


@final
class Runs:
    """The models of several runs."""

    def __init__(
        self, device: Any, settings: Sequence[Setting], users: int, n_features: int, payoffs: int
    ) -> None:
        self._device = device
        self._count = len(settings)
        self._features = n_features
        self._tables = _Tables(device)
        with jax.enable_x64(True), jax.default_device(device):
            self._models = jax.device_put(sweep.start(self._count, users, n_features), device)
            alpha, gamma = (np.array(values) for values in zip(*settings, strict=True))
            self._rules = jax.device_put(sweep.rules(alpha, gamma, payoffs), device)

    def play(self, asked: Mapping[int, tuple[Batch, int]]) -> dict[int, sweep.JointOutcome]:
        """Play checked batches of some runs, each after so many payoffs learned; return the outcomes by run.

        The users of a batch are rows, its items are feature vectors.
        """
        length = max(len(rounds.users) for rounds, _ in asked.values())
        width = max(rounds.candidates.shape[1] for rounds, _ in asked.values())
        filled = -(-length // STEP) * STEP
        table, first = self._tables.joined([rounds.items for rounds, _ in asked.values()])
        joint = sweep.JointRounds(
            np.zeros((filled, self._count), np.int32),
            np.zeros((filled, self._count, width), np.int32),
            np.zeros((filled, self._count, width)),
            np.full((filled, self._count), width, np.int32),  # no candidate, so nothing is learned
        )
        learned = np.zeros(self._count, np.int32)
        for (number, (rounds, before)), offset in zip(asked.items(), first, strict=True):
            here = slice(len(rounds.users)), number
            # A list that is too short repeats its last candidate: of equal scores the first is chosen.
            shown = np.pad(rounds.candidates, ((0, 0), (0, width - rounds.candidates.shape[1])), "edge")
            joint.users[here], joint.candidates[here] = rounds.users, shown + offset
            joint.payoffs[here][:, : rounds.candidates.shape[1]] = (
                rounds.payoffs
            )  # a log's payoff stands for all
            joint.served[here] = rounds.served
            learned[number] = before
        played = self._play(joint, learned, table)
        return {
            number: sweep.JointOutcome(*(part[: len(rounds.users), number] for part in played))
            for number, (rounds, _) in asked.items()
        }

    def _play(self, joint: sweep.JointRounds, learned: Any, table: Any) -> sweep.JointOutcome:
        parts = []
        with jax.enable_x64(True):
            for start in range(0, len(joint.users), STEP):
                now = jax.device_put(
                    sweep.JointRounds(*(part[start : start + STEP] for part in joint)), self._device
                )
                self._models, learned, played = sweep.play(
                    self._models, learned, now, table, self._rules, sweep.code_for(self._device)
                )
                parts.append(sweep.JointOutcome(*map(np.asarray, played)))
        return sweep.JointOutcome(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def read(self, run: int) -> tuple[Ints, Block]:
        """Return the rows that have learned in a run, and their models."""
        pairs, d = self._features * (self._features + 1) // 2, self._features
        known, lost = (np.asarray(part[run]) for part in self._models)
        rows = np.flatnonzero(~np.isnan(known[:, pairs]))
        known, lost = known[rows], lost[rows]
        return rows, Block(
            known[:, :pairs], known[:, pairs : pairs + d], lost[:, :pairs], lost[:, pairs : pairs + d]
        )

    def write(self, run: int, block: Block) -> None:
        """Set the models of the first rows of a run."""
        count, pairs = block.inverses.shape
        inside = slice(count), slice(pairs + self._features)
        known = np.concatenate([block.inverses, block.weights], axis=1)
        lost = np.concatenate([block.lost, block.missed], axis=1).astype(np.float32)
        with jax.enable_x64(True), jax.default_device(self._device):
            self._models = sweep.JointModels(
                self._models.known.at[run, *inside].set(known), self._models.lost.at[run, *inside].set(lost)
            )


@final
class _Tables:
    """The items' features on the device, sent once."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._kept: list[Floats] = []  # the tables on the device
        self._sent: Any = None

    def joined(self, tables: Sequence[Floats]) -> tuple[Any, list[int]]:
        """Return all tables in one, and where each begins in it."""
        different = list({id(table): table for table in tables}.values())
        if [*map(id, different)] != [*map(id, self._kept)]:
            self._kept = different
            with jax.enable_x64(True):
                self._sent = jax.device_put(np.concatenate(different), self._device)
        begins = np.cumsum([0, *map(len, self._kept)])[:-1].tolist()
        begin = dict(zip(map(id, self._kept), begins, strict=True))
        return self._sent, [begin[id(table)] for table in tables]
