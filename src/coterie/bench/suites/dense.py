"""Dense CAB at LastFM's size: 1,892 users, 25 features, 25 candidates, float64, one core."""

import math
from collections.abc import Callable, Iterator

import numpy as np

from coterie import CAB
from coterie.arrays import Floats, Ints
from coterie.bench.measuring import Measured, at_least, at_most, best_of, no_limit, one_by_one, unit_vectors
from coterie.policies.base.batch import Batch

USERS, FEATURES, CANDIDATES = 1892, 25, 25
PAIRS = FEATURES * (FEATURES + 1) // 2
ALPHA = 0.1


def rows(quick: bool, on_progress: Callable[[str], None]) -> Iterator[Measured]:
    """Measure a round of the compiled loop against its arithmetic, NumPy, sharing, and the Python calls."""
    rate = product_rate()
    arithmetic = USERS * CANDIDATES * PAIRS / rate  # seconds
    repeats = 3 if quick else 9
    rounds = 200 if quick else 500

    on_progress("one round, one user updated")
    alone, batch = prepare(gamma=0.0, n_rounds=rounds)
    alone.run(batch)
    one = best_of(repeats, lambda: alone.run(batch)) / rounds
    against = "n·c·d(d+1)/2 multiply-adds at the rate of a large square matrix product"
    keeps = at_most(1.6, one / arithmetic)
    yield Measured("dense", "a round against its arithmetic", 1e3 * one, "ms", against, **keeps)

    on_progress("the same round in NumPy")
    checked = 200 if quick else 5000
    policy, compared = prepare(gamma=0.0, n_rounds=checked)
    transcription = Transcription(policy)
    slow = best_of(3, lambda: [transcription.play(compared, t) for t in range(10)]) / 10
    same = identical(checked, on_progress)
    yield Measured(
        "dense", f"NumPy with einsum against a round; {same} of {checked} choices equal", 1e3 * slow, "ms",
        "a round of the compiled loop", **(at_least(8, slow / one) | ({} if same == checked else {"holds": False})),
    )  # fmt: skip

    on_progress("one round, many users updated")
    together, shared = prepare(gamma=2.0, n_rounds=rounds)
    together.run(shared)
    outcome = together.run(shared)
    many = best_of(repeats, lambda: together.run(shared)) / rounds
    # Read and write M⁻¹ and its rounding compensation.
    memory = outcome.updated.mean() * PAIRS * (8 + 4) * 2 / copy_rate()
    yield Measured(
        "dense", f"a round that updates {outcome.updated.mean():.0f} users, without the updates at memory speed",
        1e3 * many, "ms", "a round that updates one", **at_most(1.5, float((many - memory) / one)),
    )  # fmt: skip

    on_progress("one call of choose and one of learn")
    calls, batch = prepare(gamma=0.0, n_rounds=rounds)
    python = min(one_by_one(calls, batch) for _ in range(repeats))
    yield Measured("dense", "choose and learn from Python", 1e3 * python, "ms", "a round of the compiled loop",
              **at_most(1.2, python / one))  # fmt: skip

    on_progress("64 users at once")
    users = list(batch.users[:64])
    lists = [batch.items[row] for row in batch.candidates[:64]]
    each = best_of(repeats, lambda: calls.choose_many(users, lists)) / 64
    single = best_of(repeats, lambda: [calls.choose(u, x) for u, x in zip(users, lists, strict=True)]) / 64
    yield Measured("dense", "choose_many for 64 users, each", 1e3 * each, "ms", "choose, one by one",
              **no_limit(each / single))  # fmt: skip


def prepare(gamma: float, n_rounds: int) -> tuple[CAB, Batch]:
    """Return a CAB in which every user has learned, and rounds of random users."""
    rng = np.random.default_rng(0)
    items = unit_vectors(rng, 5000, FEATURES)
    policy = CAB(n_features=FEATURES, alpha=ALPHA, gamma=gamma)
    warm = np.tile(np.arange(USERS), 3)
    policy.run(random_batch(rng, warm, items, 1))
    return policy, random_batch(rng, rng.integers(USERS, size=n_rounds), items, CANDIDATES)


def random_batch(rng: np.random.Generator, users: Ints, items: Floats, candidates: int) -> Batch:
    """Return rounds with random candidates; payoffs in tenths."""
    shown = rng.integers(len(items), size=(len(users), candidates))
    payoffs = np.round(rng.uniform(0, 1, size=shown.shape), 1)
    return Batch(users.tolist(), shown, items, payoffs)


def product_rate() -> float:
    """Return the multiply-adds per second of a large square matrix product."""
    size = 1500
    a = np.random.default_rng(0).random((size, size))
    return float(size**3 / best_of(5, lambda: a @ a))


def copy_rate() -> float:
    """Return the bytes per second, read and written, of a copy as large as the models."""
    a = np.ones(USERS * PAIRS * 12 // 8)  # zeros would be one page, read repeatedly
    b = np.zeros_like(a)
    return float(2 * a.nbytes / best_of(20, lambda: np.copyto(b, a)))


class Transcription:
    """Algorithm 1 in straightforward NumPy: full inverses, einsum over all users and candidates."""

    def __init__(self, policy: CAB) -> None:
        saved = policy.tensors()
        n = len(saved["weights"])
        upper = np.zeros((n, FEATURES, FEATURES))
        upper[:, *np.triu_indices(FEATURES)] = saved["inverses"]
        self.inverses = upper + np.triu(upper, 1).transpose(0, 2, 1)
        self.weights = saved["weights"].copy()
        self.row = {user: row for row, user in enumerate(policy.users)}
        self.t = policy.learned + 1

    def play(self, batch: Batch, t: int) -> int:
        """Choose and learn in round t, and return the choice."""
        x = batch.items[batch.candidates[t]]
        i = self.row[batch.users[t]]
        scale = ALPHA * math.sqrt(math.log1p(self.t))
        bounds = scale * np.sqrt(np.einsum("kf,jfg,kg->jk", x, self.inverses, x, optimize=True))
        estimates = self.weights @ x.T
        near = np.abs(estimates - estimates[i]) <= bounds + bounds[i] + 1e-12
        score = ((estimates + bounds) * near).sum(axis=0) / near.sum(axis=0)
        k = int(np.argmax(score.max() - score < 1e-9))
        v = self.inverses[i] @ x[k]
        s = 1 + v @ x[k]
        self.weights[i] += v * (batch.payoffs[t, k] - estimates[i, k]) / s
        self.inverses[i] -= np.outer(v, v) / s
        self.t += 1
        return k


def identical(n_rounds: int, on_progress: Callable[[str], None]) -> int:
    """Return how many choices the compiled loop and the transcription have in common."""
    policy, batch = prepare(gamma=0.0, n_rounds=n_rounds)
    twin = Transcription(policy)
    choice = policy.run(batch).choice
    same = 0
    for t in range(n_rounds):
        same += twin.play(batch, t) == choice[t]
        if t % 500 == 499:
            on_progress(f"comparing choices: {t + 1} of {n_rounds}")
    return same
