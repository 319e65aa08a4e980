"""M-CNB: a neural network per user, and one that adapts to the users who answer alike (Ban et al., KDD 2024).

paper            here
u                user
f(·; θ_u)        the user's network _nets[u]: d–hidden–1 with ReLU
f(·; Θ)          the meta network _meta
N̂_u(x)           the users whose networks answer within gamma of this user's, at most a fifth of all, drawn
γ, ν             gamma, nu

The score is Θ(x) + √(ν·‖∇Θ(x)‖²) + ν·√(1/visits of the user). In every 10th round the meta network first takes up
to 100 steps of SGD (rate 0.01) on the payoffs of the candidate's group, candidate after candidate. After every 10th
payoff (from the 1,000th on every 100th) both networks are trained with Adam (rate 0.001): the meta network on all
payoffs, up to 1,000 steps, and the user's on the user's own, up to 500. Training ends early after a pass over the
payoffs with a mean squared error of at most 0.001.

Written from the authors' public code. There a decision in a 10th round changes the meta network. Here a decision
changes nothing: it adapts a copy, which `learn` keeps if the payoff belongs to the last choice. A payoff that comes
later is learned without it. An adaptation in which a weight would exceed MOST, as SGD may from the large weights of a
model file, is not made. What is drawn follows from seed and state.
"""

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import final

import numpy as np

from coterie.arrays import Bools, Floats, Ints
from coterie.errors import FileError
from coterie.models.actions import ActionLike, Actions, ActionsLike
from coterie.models.checks import NORM, check_count, check_number, read_payoff, read_vectors
from coterie.models.files import Tensors, pack_ids, take, unpack_ids
from coterie.models.probability import first_best
from coterie.models.roster import Roster
from coterie.policies.base.decision import Basis, Decision
from coterie.policies.base.parameters import Seed, make_random
from coterie.policies.base.policy import Policy

OFTEN, SELDOM, EARLY = 10, 100, 1_000  # rounds between trainings, and up to when they are frequent
SHARE = 5  # at most one of so many users is in a group
ENOUGH = 1e-3  # a mean squared error that ends training
MOST = 1e30  # the largest weight: up to it no step of Adam overflows, and each is below 0.01


@final
@dataclass(kw_only=True, eq=False, repr=False)
class MCNB(Policy):
    """Decides with a network that adapts to the users whose own networks answer alike.

    gamma
        How near two users' answers must be for one group.
    nu
        How much is explored.
    hidden
        How many hidden units a network has.
    seed
        Seed of the networks, the groups and the order of training: an integer, or a numpy.random.Generator.

    n_features is as in every `Policy`. Raises ParameterError if a number is out of range.

    >>> policy = MCNB(n_features=2, hidden=10)
    >>> policy.learn_many(["ann"] * 40, [[1.0, 0.0], [0.0, 1.0]] * 20, [1, 0] * 20)
    40
    >>> policy.choose("ann", [[0.0, 1.0], [1.0, 0.0]])
    1
    """

    name = "m-cnb"
    reference = "Ban, Qi, Wei, Liu, He 2024: Meta clustering of neural bandits"
    finds_neighbours = True
    tuned = {"gamma": (0.1, 0.2, 0.4), "nu": (1e-4, 1e-3, 1e-2)}  # noqa: RUF012 (never changed)

    n_features: int
    gamma: float = 0.4
    nu: float = 1e-4
    hidden: int = 100
    seed: Seed = 0

    def __post_init__(self) -> None:
        self.n_features: int = check_count("n_features", self.n_features)
        self.gamma, self.nu = check_number("gamma", self.gamma), check_number("nu", self.nu)
        self.hidden = check_count("hidden", self.hidden)
        _, self.seed_number = make_random(self.seed)
        self._roster = Roster()
        self._meta = self._start(0)
        self._nets = np.zeros((0, len(self._meta)))  # with room for more users
        self._contexts: list[Floats] = []  # of all payoffs, with the constant
        self._payoffs: list[float] = []
        self._users: list[Hashable] = []
        self._last: tuple[Hashable, Actions] | None = None  # the user and the candidates of the last choice

    def _draw(self, *what: int) -> np.random.Generator:
        return np.random.default_rng([self.seed_number, *what])

    def _start(self, number: int) -> Floats:
        """Return an untrained network: its weights, with those of the constants."""
        rng, d, h = self._draw(0, number), self.n_features, self.hidden
        inner, outer = rng.uniform(-1, 1, h * (d + 1)), rng.uniform(-1, 1, h + 1)
        return np.concatenate([inner / math.sqrt(d), outer / math.sqrt(h)])

    def _own(self, row: int) -> Floats:
        return self._nets[row] if row >= 0 else self._start(1 + len(self._roster))

    def _alike(self, row: int, x: Floats) -> Bools:
        """Return for each candidate and user whether the user answers as the user of `row` does."""
        n, split = len(self._roster), self.hidden * x.shape[1]
        middle = (self._nets[:n, :split].reshape(-1, x.shape[1]) @ x.T).reshape(n, self.hidden, len(x))
        outer = self._nets[:n, split:]
        answers = np.einsum("nhc,nh->cn", np.maximum(middle, 0), outer[:, :-1]) + outer[:, -1]
        near: Bools = np.abs(answers - _answers(self._own(row), x)[0][:, None]) < self.gamma
        if row >= 0:
            near[:, row] = True
        return near

    def _group(self, near: Bools, row: int, rng: np.random.Generator) -> Ints:
        """Return the payoffs of the users of a group, at most a fifth of all users."""
        group, most = np.flatnonzero(near), len(self._roster) // SHARE
        if len(group) > most:
            group = rng.choice(group, most)
            group = np.append(group, row) if row >= 0 else group
        members = {self._roster.names[one] for one in group}
        return np.array([k for k, user in enumerate(self._users) if user in members], dtype=np.int64)

    def decide(self, user: Hashable, contexts: ActionsLike) -> Decision:
        """Score each candidate by the meta network, adapted to the candidate's group in every 10th round."""
        given = read_vectors(contexts, self.n_features)
        x, row = _with_constant(given), self._roster.row(user)
        near = self._alike(row, x)
        estimate, slope = np.zeros(len(x)), np.zeros(len(x))
        for k, net in enumerate(self._adapted(row, near)):
            estimate[k : k + 1], slope[k : k + 1] = _answers(net, x[k : k + 1])
        width = np.sqrt(self.nu * slope) + self.nu * math.sqrt(1 / (1 + self._users.count(user)))
        chance = np.eye(len(x))[first_best(estimate + width)]
        members = near.sum(axis=1) + (row < 0)
        return Decision(
            user, given, estimate + width, chance, estimate=estimate, width=width, basis=Basis(members)
        )

    def _adapted(self, row: int, near: Bools) -> Iterator[Floats]:
        """Yield the meta network for each candidate, in every 10th round adapted to one group after the other."""
        net, rng = self._meta, self._draw(1, self.learned)
        for group in near:
            if self.learned % OFTEN == 0 and len(self._payoffs):
                with np.errstate(over="ignore", invalid="ignore"):  # SGD may diverge
                    found = self._trained(net, self._group(group, row, rng), rng, 1e-2, 100, adam=False)
                net = found if np.abs(found).max() <= MOST else net
            yield net

    def draw(self, decision: Decision) -> int:
        """Draw a candidate, and keep who was shown what, to learn from it."""
        self._last = (decision.user, decision.contexts)
        return super().draw(decision)

    def _trained(
        self, net: Floats, which: Ints, rng: np.random.Generator, rate: float, limit: int, *, adam: bool
    ) -> Floats:
        """Return a network after at most `limit` steps over some payoffs, in an order that is drawn for each pass."""
        net, slope, mean, square = net.copy(), *(np.zeros_like(net) for _ in range(3))
        done = 0
        while len(which):
            lost = 0.0
            for k in which[rng.permutation(len(which))].tolist():
                done += 1
                error = _slope(net, self._contexts[k], self._payoffs[k], slope)
                if adam:
                    mean += 0.1 * (slope - mean)
                    square += 0.001 * (slope * slope - square)
                    net -= rate / (1 - 0.9**done) * mean / (np.sqrt(square / (1 - 0.999**done)) + 1e-8)
                else:
                    net -= rate * slope
                lost += error * error
                if done >= limit:
                    return net
            if lost <= ENOUGH * len(which):
                break
        return net

    def neighbours(self, user: Hashable, context: ActionLike) -> list[Hashable]:
        """Return the users whose networks answer alike on `context`, including `user`."""
        row = self._roster.row(user)
        [near] = self._alike(row, _with_constant(read_vectors([context], self.n_features)))
        names = [self._roster.names[one] for one in np.flatnonzero(near)]
        return names if row >= 0 else [*names, user]

    def learn(self, user: Hashable, context: ActionLike, payoff: float) -> int:
        """Keep the payoff, and train the meta network and the user's if it is time."""
        x = _with_constant(read_vectors([context], self.n_features))[0]
        payoff = read_payoff(payoff)
        last, row = self._last, self._roster.row(user)
        if self.learned % OFTEN == 0 and last is not None and last[0] == user:
            shown = _with_constant(last[1])
            if (shown == x).all(axis=1).any():
                *_, self._meta = self._adapted(row, self._alike(row, shown))
        self._last = None
        self.add(user)
        self._contexts.append(x)
        self._payoffs.append(payoff)
        self._users.append(user)
        if self.learned % (OFTEN if self.learned < EARLY else SELDOM) == 0:
            rng, row = self._draw(2, self.learned), self._roster.row(user)
            own = np.array([k for k, one in enumerate(self._users) if one == user])
            self._nets[row] = self._trained(self._own(row), own, rng, 1e-3, 500, adam=True)
            everything = np.arange(len(self._payoffs))
            self._meta = self._trained(self._meta, everything, rng, 1e-3, 1_000, adam=True)
        self.learned += 1
        return 1

    def add(self, user: Hashable) -> None:
        """Register a user, with an untrained network."""
        if user not in self._roster:
            row = len(self._roster)
            fresh = self._own(-1)
            self._roster.join(user)
            if row == len(self._nets):
                self._nets = np.concatenate([self._nets, np.zeros((max(16, row), len(fresh)))])
            self._nets[row] = fresh

    def drop(self, user: Hashable) -> None:
        """Forget a user with network and payoffs, but not what the meta network learned from them."""
        row, last = self._roster.leave(user), len(self._roster)
        self._nets[row] = self._nets[last]
        kept = [k for k, one in enumerate(self._users) if one != user]
        self._contexts = [self._contexts[k] for k in kept]
        self._payoffs = [self._payoffs[k] for k in kept]
        self._users = [self._users[k] for k in kept]
        self._last = None

    @property
    def users(self) -> list[Hashable]:
        """The known users."""
        return list(self._roster.names)

    def tensors(self) -> Tensors:
        """Return all that was learned, as arrays."""
        n = len(self._roster)
        return {
            "users": pack_ids(self._roster.names),
            "nets": self._nets[:n].copy(),
            "meta": self._meta,
            "contexts": np.array(self._contexts).reshape(-1, self.n_features + 1),
            "payoffs": np.array(self._payoffs),
            "of": np.array([self._roster.row(user) for user in self._users], dtype=np.int64),
        }

    def restore(self, tensors: Tensors) -> None:
        """Restore what `tensors` returned."""
        names, of = unpack_ids(tensors, "users"), take(tensors, "of", "i", (None,))
        n, size = len(names), len(self._meta)
        nets, meta = take(tensors, "nets", "f", (n, size), MOST), take(tensors, "meta", "f", (size,), MOST)
        contexts = take(tensors, "contexts", "f", (len(of), self.n_features + 1), NORM)
        payoffs = take(tensors, "payoffs", "f", (len(of),), 1.0)
        if len(of) and (of.min() < 0 or of.max() >= n):
            raise FileError("the model file has a payoff of a user who is not known")
        self._roster, self._nets, self._meta = Roster(names), nets.copy(), meta.copy()
        self._contexts, self._payoffs = list(contexts.copy()), payoffs.tolist()
        self._users = [names[row] for row in of.tolist()]


def _with_constant(vectors: Floats) -> Floats:
    return np.column_stack([vectors, np.ones(len(vectors))])


def _parts(net: Floats, d: int) -> tuple[Floats, Floats]:
    """Return the weights of the hidden units, (hidden, d), and those of the answer, (hidden + 1,), as views."""
    hidden = (len(net) - 1) // (d + 1)
    return net[: hidden * d].reshape(hidden, d), net[hidden * d :]


def _answers(net: Floats, x: Floats) -> tuple[Floats, Floats]:
    """Return the answer to each candidate, and the squared length of its gradient by the weights."""
    inner, outer = _parts(net, x.shape[1])
    middle = x @ inner.T
    shown = np.maximum(middle, 0)
    slope = (
        ((middle > 0) * outer[:-1] ** 2).sum(axis=1) * (x * x).sum(axis=1) + (shown * shown).sum(axis=1) + 1
    )
    return shown @ outer[:-1] + outer[-1], slope


def _slope(net: Floats, x: Floats, payoff: float, slope: Floats) -> float:
    """Return the error at one payoff, and put the gradient of its square by the weights into `slope`."""
    inner, outer = _parts(net, len(x))
    to_inner, to_outer = _parts(slope, len(x))
    middle = inner @ x
    shown = np.maximum(middle, 0)
    error = float(shown @ outer[:-1] + outer[-1]) - payoff
    np.outer(2 * error * outer[:-1] * (middle > 0), x, out=to_inner)
    to_outer[:-1], to_outer[-1] = 2 * error * shown, 2 * error
    return error
