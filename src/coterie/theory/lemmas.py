"""Checks the paper's inequalities in thousands of small random worlds, round by round.

CAB plays with the α(t) of the confidence lemma. The matrices are computed here, separately from CAB's models, so
that the code itself is tested.
"""

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from coterie.arrays import Floats
from coterie.data import DenseWorld
from coterie.policies import CAB
from coterie.theory.bounds import confidence, lemma_2, regret_bound, theorem_1
from coterie.theory.hardness import hardness
from coterie.theory.watching import know_all

SLACK = 1e-9
DELTA = 0.05

# The claims in words. The last two are steps of the paper that do not hold as printed.
CLAIMS = {
    "neighbourhood": "Lemma 5: all sure (CB < γ/4) and the truth within bounds, then N̂ = N",
    "updated": "Remark 2: the users then updated are exactly N",
    "instant": "Lemma 4: r_t ≤ (3α + 2)·(wrong at best + wrong at chosen) + 2·CB_N(x̄)",
    "determinant": "Σ xᵀM⁻¹x ≤ 2·log det M, for each user",
    "unsure": "rounds in which somebody is unsure ≤ HD + 1",
    "regret": "regret ≤ 2·(HD + 1) + 2α·√(2d·log(1 + T/d)·Σ n/|N|)",
    "theorem": "Theorem 1: regret ≤ 9α·(c·n·HD + √(d·log T·Σ n/|N|))",
    "sizes": "Lemma 2: Σ 1/|N| ≤ 2Tc·E[m]/n + 12·log(log T/δ), with probability 1 - δ",
    "confidence": "Lemma 3: ‖w - u‖_M ≤ α(t) for all users and rounds, with probability 1 - δ",
    "unsure_printed": "as printed in the proof of Theorem 1: Σ_t Σ_k Σ_j {CB ≥ γ/4} ≤ c·n·HD",
    "constant_printed": "as printed in the proof of Theorem 1: 8α + 4 ≤ 9α",
}
LIKELY = ("sizes", "confidence")  # may fail in a share δ of the worlds


@dataclass
class Claim:
    """How often an inequality was checked, how often it failed, and the seeds where it failed."""

    checked: int = 0
    broken: int = 0
    seeds: list[int] = field(default_factory=list)

    def count(self, holds: bool, seed: int) -> None:
        """Count one check."""
        self.checked += 1
        if not holds:
            self.broken += 1
            if seed not in self.seeds[-1:]:
                self.seeds.append(seed)


class LemmaChecks(NamedTuple):
    """The claims by name, over `worlds` worlds."""

    worlds: int
    claims: dict[str, Claim]

    def holds(self, name: str) -> bool:
        """Whether a claim held: everywhere, or in the promised share of worlds."""
        claim = self.claims[name]
        if name in LIKELY:
            # Three standard deviations above the promised share of failures.
            most = DELTA * claim.checked + 3 * math.sqrt(DELTA * claim.checked)
            return claim.broken <= most
        return claim.broken == 0


def draw_world(seed: int) -> DenseWorld:
    """Return the small world of this seed: one family, so that choices cannot avoid a direction forever."""
    rng = np.random.default_rng([seed, 6])
    clusters = int(rng.integers(1, 4))
    common = int(rng.integers(0, 2)) if clusters > 1 else 1
    noise = float(rng.choice([0.0, 0.02, 0.1]))
    spread = np.arange(clusters) - (clusters - 1) / 2
    room = (1 - noise) / max(float(np.linalg.norm(spread)), 1.0) * (0.85 if common else 0.95)
    return DenseWorld(
        n_users=int(rng.integers(clusters, clusters + 4)),
        n_features=clusters + common,
        n_families=1,
        clusters_per_family=clusters,
        gap=float(rng.uniform(0.5, 1)) * room,
        noise=noise,
        n_candidates=int(rng.integers(1, 5)),
        seed=seed,
    )


def check(seeds: Iterable[int], n_rounds: int = 120) -> LemmaChecks:
    """Play the worlds of these seeds and count where each claim was checked and failed."""
    claims = {name: Claim() for name in CLAIMS}
    worlds = 0
    for seed in seeds:
        _check_world(seed, n_rounds, claims)
        worlds += 1
    return LemmaChecks(worlds, claims)


def _check_world(seed: int, n_rounds: int, claims: dict[str, Claim]) -> None:
    world = draw_world(seed)
    n, d, gamma = world.n_users, world.n_features, world.gap
    users = world.users()
    truth = np.array([world.truth(user) for user in users])  # (n, d)

    def alpha(t: int) -> float:
        return confidence(t, n_features=d, n_users=n, delta=DELTA, noise=world.noise)

    policy = CAB(n_features=d, alpha=alpha, gamma=gamma)
    know_all(policy, users)
    last = alpha(n_rounds)
    M, b = np.tile(np.eye(d), (n, 1, 1)), np.zeros((n, d))
    potential = np.zeros(n)
    regret = inverse_sizes = clusters = 0.0
    unsure_rounds = unsure_sum = 0
    always = True
    rounds = list(world.rounds(n_rounds))
    for t, sent in enumerate(rounds, start=1):
        i, X = sent.user, np.asarray(sent.contexts)
        inverse = np.linalg.inv(M)
        W = np.einsum("jab,jb->ja", inverse, b)
        CB = alpha(t) * np.sqrt(np.einsum("ka,jab,kb->jk", X, inverse, X))  # (n, candidates)
        miss = W - truth
        confident = bool((np.sqrt(np.einsum("ja,jab,jb->j", miss, M, miss)) <= alpha(t) + SLACK).all())
        always &= confident
        unsure = gamma / 4 <= CB
        unsure_sum += int(unsure.sum())
        unsure_rounds += bool(unsure.any())
        k = policy.choose(i, X)
        best = int(np.argmax(sent.expected))
        near = [set(policy.neighbours(i, x)) for x in X]
        true = [set(world.neighbours(i, x)) for x in X]
        lost = float(sent.expected[best] - sent.expected[k])
        before = _spreads(policy, users, X[k])
        policy.learn(i, X[k], float(sent.payoffs[k]))
        learned = {j for j in users if _spreads(policy, [j], X[k])[0] < before[j] - 1e-12}
        if confident:
            for place in range(len(X)):
                if not unsure[:, place].any():
                    claims["neighbourhood"].count(near[place] == true[place], seed)
            if not unsure[:, k].any():
                claims["updated"].count(learned == true[k], seed)
            wrong = (near[best] != true[best]) + (near[k] != true[k])
            own = float(np.mean([CB[users.index(j), k] for j in true[k]]))  # type: ignore[arg-type]
            claims["instant"].count(lost <= (3 * last + 2) * wrong + 2 * own + SLACK, seed)
        for j in learned:
            potential[j] += X[k] @ inverse[j] @ X[k]
            M[j] += np.outer(X[k], X[k])
            b[j] += sent.payoffs[k] * X[k]
        regret += lost
        inverse_sizes += 1 / len(true[k])
        clusters += float(np.mean([world.n_clusters(x) for x in X])) / n_rounds
    claims["confidence"].count(always, seed)
    for j in users:
        claims["determinant"].count(potential[j] <= 2 * np.linalg.slogdet(M[j])[1] + SLACK, seed)
    most = lemma_2(n_rounds=n_rounds, n_candidates=len(X), n_users=n, clusters=clusters, delta=DELTA)
    claims["sizes"].count(inverse_sizes <= most, seed)
    claims["constant_printed"].count(8 * last + 4 <= 9 * last, seed)
    if not always:
        return  # the theorem assumes confidence
    eta = 16 * last**2 / gamma**2
    hard = hardness([r.user for r in rounds], [r.contexts for r in rounds], eta, everyone=users, effort=400)
    claims["unsure"].count(unsure_rounds <= hard.upper + 1, seed)
    claims["unsure_printed"].count(unsure_sum <= len(X) * n * hard.upper, seed)
    run: dict[str, Any] = {
        "alpha": last,
        "n_rounds": n_rounds,
        "n_users": n,
        "n_features": d,
        "hardness": hard.upper,
        "inverse_sizes": inverse_sizes,
    }
    claims["regret"].count(regret <= regret_bound(**run).total + SLACK, seed)
    claims["theorem"].count(regret <= theorem_1(**run, n_candidates=len(X)).total + SLACK, seed)


def _spreads(policy: CAB, users: Iterable[Hashable], x: Floats) -> list[float]:
    """Return √(xᵀM⁻¹x) from the policy's own models."""
    contexts = policy.models.read([x])
    return [float(policy.models.view(user, contexts).spread[0]) for user in users]
