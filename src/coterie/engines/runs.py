"""Runs of dense CAB side by side on a device: each gives a batch of rounds, and all batches are played together.

In a joint round every run decides and learns once, with its own users, alpha and gamma. Each user of a run has a
column from the start. A decision and its payoff see the same models, so the same neighbours.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from coterie.arrays import Floats, Ints
from coterie.engines.device import (
    Array,
    UserColumns,
    as_tensors,
    free_columns,
    from_tensors,
    look,
    updated,
    view,
)
from coterie.models.batches import Batch
from coterie.models.files import Tensors
from coterie.models.protocol import TIE

STEP = 250  # rounds in one call of the device; shorter batches are filled up with rounds without a payoff
LEARNERS = 2048  # rows that learn in one step; more of them take more steps


class Rules(NamedTuple):
    """The settings of each run."""

    alpha: Array  # (runs,)
    limit: Array  # (runs,): γ/4
    growth: Array  # (payoffs + 1,): √log(1+t) by payoffs learned before


class JointRounds(NamedTuple):
    """The rounds to play: the same number in every run."""

    users: Array  # (rounds, runs), int32
    candidates: Array  # (rounds, runs, candidates), int32: rows of the table
    payoffs: Array  # (rounds, runs, candidates)
    served: Array  # (rounds, runs), int32: the candidate whose payoff a log knows, or -1 where all are known


class JointOutcome(NamedTuple):
    """The outcome of each round, (rounds, runs) each."""

    choice: Array
    kept: Array
    members: Array
    updated: Array


@final
class JointRuns:
    """The models of several runs, with an alpha and a gamma each."""

    def __init__(
        self, device: Any, alpha: Sequence[float], gamma: Sequence[float], users: int, n_features: int, payoffs: int
    ) -> None:  # fmt: skip
        self._device, self._count, self._features = device, len(alpha), n_features
        self._tables: list[Floats] = []  # the items' features that are on the device
        self._sent: Any = None
        with jax.enable_x64(True), jax.default_device(device):
            self._models = jax.device_put(free_columns((self._count,), n_features, users), device)
            growth = np.sqrt(np.log1p(np.arange(1, payoffs + 2, dtype=np.float64)))
            self._rules = jax.device_put(Rules(np.array(alpha), np.array(gamma) / 4, growth), device)

    def play(self, asked: Mapping[int, tuple[Batch, int]]) -> dict[int, JointOutcome]:
        """Play checked batches of some runs, each after so many payoffs learned; return the outcomes by run.

        The users of a batch are rows, its items are feature vectors.
        """
        batches = [rounds for rounds, _ in asked.values()]
        width = max(rounds.candidates.shape[1] for rounds in batches)
        filled = -(-max(len(rounds.users) for rounds in batches) // STEP) * STEP
        joint = JointRounds(
            np.zeros((filled, self._count), np.int32),
            np.zeros((filled, self._count, width), np.int32),
            np.zeros((filled, self._count, width)),
            np.full((filled, self._count), width, np.int32),  # no candidate, so nothing is learned
        )
        learned = np.zeros(self._count, np.int32)
        table, begins = self._joined([rounds.items for rounds in batches])
        for (number, (rounds, before)), begin in zip(asked.items(), begins, strict=True):
            here, own = (slice(len(rounds.users)), number), rounds.candidates.shape[1]
            # A list that is too short repeats its last candidate: of equal scores the first is chosen.
            shown = np.pad(rounds.candidates, ((0, 0), (0, width - own)), "edge")
            joint.users[here], joint.candidates[here] = rounds.users, shown + begin
            joint.payoffs[here][:, :own] = rounds.payoffs  # a log's payoff stands for all
            joint.served[here], learned[number] = rounds.served, before
        played = self.play_joint(joint, learned, table)
        return {
            number: JointOutcome(*(part[: len(rounds.users), number] for part in played))
            for number, (rounds, _) in asked.items()
        }

    def play_joint(self, joint: JointRounds, learned: Any, table: Any) -> JointOutcome:
        """Play rounds of all runs, after so many payoffs learned in each, with candidates from one table."""
        parts = []
        with jax.enable_x64(True):
            for start in range(0, len(joint.users), STEP):
                now = JointRounds(*(part[start : start + STEP] for part in joint))
                (self._models, learned), played = _play(
                    self._models, learned, jax.device_put(now, self._device), table, self._rules
                )
                parts.append(JointOutcome(*map(np.asarray, played)))
        return JointOutcome(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def _joined(self, tables: Sequence[Floats]) -> tuple[Any, list[int]]:
        """Return all tables in one on the device, which is sent once, and where each begins in it."""
        different = list({id(table): table for table in tables}.values())
        if [*map(id, different)] != [*map(id, self._tables)]:
            self._tables = different
            with jax.enable_x64(True):
                self._sent = jax.device_put(np.concatenate(different), self._device)
        begins = np.cumsum([0, *map(len, self._tables)])[:-1].tolist()
        begin = dict(zip(map(id, self._tables), begins, strict=True))
        return self._sent, [begin[id(table)] for table in tables]

    def read(self, run: int) -> tuple[Ints, Tensors]:
        """Return the rows that have learned in a run, and their models in the format of files."""
        models = self._models.map(lambda part: np.asarray(part[run]))
        rows = np.flatnonzero(~np.isnan(models.weights[0]))
        return rows, as_tensors(models.map(lambda part: part[:, rows]))

    def write(self, run: int, tensors: Tensors, count: int) -> None:
        """Set the models of the first rows of a run."""
        found = from_tensors(tensors, count, self._features)
        with jax.enable_x64(True), jax.default_device(self._device):
            pairs = zip(self._models, found, strict=True)
            self._models = UserColumns(*(part.at[run, :, :count].set(new) for part, new in pairs))


State = tuple[UserColumns, Array]  # all models, and the payoffs that each run has learned


@partial(jax.jit, donate_argnums=0)
def _play(models: UserColumns, learned: Array, rounds: JointRounds, table: Array, rules: Rules) -> Any:
    """Play rounds in every run."""
    return lax.scan(lambda state, now: _round(state, now, table, rules), (models, learned), rounds)


def _round(state: State, now: JointRounds, table: Array, rules: Rules) -> tuple[State, JointOutcome]:
    """Play one round in every run."""
    models, learned = state
    runs = jnp.arange(len(now.users), dtype=jnp.int32)
    x = table[now.candidates]  # (runs, candidates, features)
    inverse, w = models.inverses[runs, :, now.users], models.weights[runs, :, now.users]
    estimate, spread = view(inverse, w, x)
    scale = jnp.broadcast_to((rules.alpha * rules.growth[learned])[:, None], spread.shape)
    (members, total, spreads), bounds = look(models, x, estimate, spread, scale)
    new = jnp.isnan(w[:, :1])
    members, spreads = members + new, spreads + jnp.where(new, spread, 0.0)
    score = total / members + scale * spreads / members
    is_tied = score.max(-1, keepdims=True) - score < TIE
    choice = jnp.argmax(is_tied, axis=-1).astype(jnp.int32)  # the first

    kept = (now.served < 0) | (now.served == choice)
    chosen = partial(_chosen, choice=choice)
    is_certain = chosen(scale * spread) < rules.limit
    together = is_certain[:, None] & (chosen(bounds) < rules.limit[:, None])
    asker = lax.broadcasted_iota(jnp.int32, together.shape, 1) == now.users[:, None]
    learns = (together | asker) & kept[:, None]

    models = _learn(models, learns, chosen(x), chosen(now.payoffs))
    outcome = choice, kept, chosen(members).astype(jnp.int32), learns.sum(1, dtype=jnp.int32)
    return (models, learned + kept), JointOutcome(*outcome)


def _chosen(array: Array, choice: Array) -> Array:
    """Return the entries of an array (runs, candidates, …) for the chosen candidate of each run."""
    places = choice.reshape(-1, *[1] * (array.ndim - 1))
    return jnp.take_along_axis(array, places, axis=1)[:, 0]


def _learn(models: UserColumns, learns: Array, context: Array, payoff: Array) -> UserColumns:
    """Update users, `LEARNERS` at a time; the rows of other users are neither read nor written."""
    runs, users = learns.shape
    flags = learns.ravel()
    place = jnp.cumsum(flags, dtype=jnp.int32)
    room = -(-runs * users // LEARNERS) * LEARNERS
    rows = jnp.full(room, runs * users, jnp.int32)  # one beyond the last row: no user
    rows = rows.at[jnp.where(flags, place - 1, room)].set(lax.iota(jnp.int32, runs * users), mode="drop")

    def some(state: tuple[Array, UserColumns]) -> tuple[Array, UserColumns]:
        first, models = state
        chosen = lax.dynamic_slice_in_dim(rows, first, LEARNERS)
        run, user = chosen // users, chosen % users
        old = models.map(lambda part: part.at[run, :, user].get(mode="fill", fill_value=0).T)
        made = zip(models, updated(old, context[run].T, payoff[run]), strict=True)
        kept = (part.at[run, :, user].set(new.T, mode="drop", unique_indices=True) for part, new in made)
        return first + LEARNERS, UserColumns(*kept)

    return lax.while_loop(lambda state: state[0] < place[-1], some, (jnp.int32(0), models))[1]
