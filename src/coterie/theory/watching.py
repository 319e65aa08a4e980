"""Compares CAB's estimated neighbourhoods with a world's true ones, round by round."""

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np

from coterie.arrays import Bools, Floats, Ints, JsonObject
from coterie.data import World
from coterie.errors import ParameterError
from coterie.models.actions import Actions
from coterie.models.checks import check_count, check_number
from coterie.policies import CAB
from coterie.policies.base.parameters import Alpha, scale_at
from coterie.theory.bounds import Terms, confidence, lemma_2, regret_bound, theorem_1
from coterie.theory.hardness import Hardness, hardness, one_hot_hardness

DELTA = 0.05


@final
@dataclass(frozen=True)
class WatchedRun:
    """One run of CAB on a world, every array (rounds,), of the chosen candidate of each round."""

    n_users: int
    n_features: int
    n_candidates: int
    gamma: float
    alpha: float  # α(T): the factor of spreads in the last round
    regret: Floats  # lost in each round
    precision: Floats  # the share of the estimated neighbourhood that is true
    recall: Floats  # the share of the true neighbourhood that was found
    same: Bools  # whether N̂ = N
    size: Ints  # |N|
    updated: Ints  # users who learned
    clusters: float  # E[m(X)], the mean over all candidates sent
    hard: Hardness | None  # HD at 16·α(T)²/γ², if requested
    largest_loss: float

    @property
    def n_rounds(self) -> int:
        """How many rounds were played."""
        return len(self.regret)

    @property
    def settled(self) -> int | None:
        """The round (from 1) from which on N̂ = N; None if the last round still differs."""
        wrong = np.flatnonzero(~self.same)
        first = int(wrong[-1]) + 2 if len(wrong) else 1
        return first if first <= self.n_rounds else None

    @property
    def inverse_sizes(self) -> Floats:
        """Σ 1/|N_{i_s}(x̄_s)| over the rounds s ≤ t, for each t."""
        return np.cumsum(1 / self.size)

    @property
    def sizes_bound(self) -> float | None:
        """Lemma 2's bound on the last of `inverse_sizes`; None for fewer than three rounds."""
        if self.n_rounds < 3:
            return None
        return lemma_2(
            n_rounds=self.n_rounds,
            n_candidates=self.n_candidates,
            n_users=self.n_users,
            clusters=self.clusters,
            delta=DELTA,
        )

    def bounds(self) -> tuple[Terms, Terms] | None:
        """Theorem 1's bound and the proved one; None without the hardness, or with an α(T) below 1."""
        if self.hard is None or self.alpha < 1 or self.n_rounds < 2:
            return None
        run: dict[str, Any] = {
            "alpha": self.alpha,
            "n_rounds": self.n_rounds,
            "n_users": self.n_users,
            "n_features": self.n_features,
            "hardness": self.hard.upper,
            "inverse_sizes": float(self.inverse_sizes[-1]),
        }
        return (
            theorem_1(**run, n_candidates=self.n_candidates),
            regret_bound(**run, largest_loss=self.largest_loss),
        )

    def summary(self) -> JsonObject:
        """The run in numbers, ready for JSON."""
        tail = slice(-max(1, self.n_rounds // 10), None)
        bounds = self.bounds()
        return {
            "rounds": self.n_rounds,
            "users": self.n_users,
            "alpha(T)": self.alpha,
            "gamma": self.gamma,
            "regret": float(self.regret.sum()),
            "precision": float(self.precision[tail].mean()),
            "recall": float(self.recall[tail].mean()),
            "same": float(self.same[tail].mean()),
            "settled": self.settled,
            "inverse_sizes": float(self.inverse_sizes[-1]),
            "inverse_sizes_expected": self.n_rounds * self.clusters / self.n_users,
            "inverse_sizes_bound": self.sizes_bound,
            "clusters": self.clusters,
            "hardness": None if self.hard is None else [self.hard.lower, self.hard.upper, self.hard.kind],
            "theorem_1": None if bounds is None else bounds[0]._asdict() | {"total": bounds[0].total},
            "proved": None if bounds is None else bounds[1]._asdict() | {"total": bounds[1].total},
        }


def theory_alpha(world: World, delta: float = DELTA) -> Alpha:
    """Return the α(t) of the confidence lemma for a world: its noise, its users, its features."""
    noise = getattr(world, "noise", 1.0)
    sigma = 0.5 if noise == "clicks" else float(noise)
    d = world.n_features or len(world.truth(0))
    norm = float(np.linalg.norm(world.truth(0))) if world.one_hot else 1.0

    n_users = world.population.n_users
    return partial(confidence, n_features=d, n_users=n_users, delta=delta, noise=sigma, norm=max(1.0, norm))


def watch(
    world: World,
    *,
    n_rounds: int,
    alpha: Alpha = 0.1,
    gamma: float | None = None,
    seed: int = 0,
    measure_hardness: bool = True,
    effort: int = 1000,
) -> WatchedRun:
    """Play CAB as printed (all users may be neighbours from the start) on a world, and compare it with the truth.

    `gamma` is the world's gap unless given. Worlds with turnover or drift are rejected: the theory does not
    cover them.
    """
    check_count("n_rounds", n_rounds)
    for name in ("turnover", "drift"):
        if value := getattr(world.population, name):
            raise ParameterError(f"{name} is {value}; the analysis is of a fixed set of users, use 0")
    gamma = check_number("gamma", getattr(world, "gap", 0.2) if gamma is None else gamma)
    d = world.n_features or len(world.truth(0))
    policy = CAB(n_features=world.n_features, one_hot=world.one_hot, alpha=alpha, gamma=gamma)
    know_all(policy, world.users())
    names = ("regret", "precision", "recall", "same", "size", "updated")
    columns: dict[str, list[Any]] = {name: [] for name in names}
    users, lists, clusters, n_sent = [], [], 0.0, 0
    for sent in world.rounds(n_rounds, seed):
        k = policy.choose(sent.user, sent.contexts)
        x = sent.contexts[k]
        found, true = set(policy.neighbours(sent.user, x)), set(world.neighbours(sent.user, x))
        both = len(found & true)
        columns["updated"].append(policy.learn(sent.user, x, float(sent.payoffs[k])))
        columns["regret"].append(float(sent.expected.max() - sent.expected[k]))
        columns["precision"].append(both / len(found))
        columns["recall"].append(both / len(true))
        columns["same"].append(found == true)
        columns["size"].append(len(true))
        users.append(sent.user)
        lists.append(sent.contexts)
        if n_sent < 2000:  # enough for the mean number of clusters
            clusters += sum(world.n_clusters(context) for context in sent.contexts)
            n_sent += len(sent.contexts)
    last = scale_at(alpha, n_rounds - 1)
    return WatchedRun(
        n_users=world.population.n_users,
        n_features=d,
        n_candidates=max(len(rows) for rows in lists),
        gamma=gamma,
        alpha=last,
        **{name: np.array(column) for name, column in columns.items()},
        clusters=clusters / n_sent,
        hard=_hardness(world, users, lists, last, gamma, d, effort) if measure_hardness else None,
        largest_loss=1.0 if getattr(world, "noise", None) == "clicks" else 2.0,
    )


def know_all(policy: CAB, users: Iterable[Hashable]) -> None:
    """Let users be neighbours from the start, as in the paper's analysis.

    CAB lets only updated users be neighbours of others, so each learns once from what changes nothing: the zero
    vector, or an item that no world has.
    """
    nothing: Actions = -1 if policy.one_hot else np.zeros(policy.n_features or 0)
    for user in users:
        policy.models.update(user, nothing, 0.0)


def _hardness(
    world: World, users: list[Hashable], lists: list[Actions], alpha: float, gamma: float, d: int, effort: int
) -> Hardness:
    if not gamma:
        return Hardness(len(users), len(users), "γ = 0", "the number of rounds")
    eta = 16 * alpha**2 / gamma**2
    if not math.isfinite(eta):
        raise ParameterError(f"gamma is {gamma}, too small to divide by")
    if world.one_hot:
        return one_hot_hardness(users, lists, eta, n_items=d, everyone=world.users())
    return hardness(users, lists, eta, everyone=world.users(), effort=effort)
