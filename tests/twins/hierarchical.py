"""Hierarchical as its documentation describes it: plain matrices, inverted each time, and lists of payoffs.

The order of the fits is part of the algorithm, so the twin visits users in the same order. All else is direct: sums
over payoffs, `np.linalg.inv`, and the means of groups from their information G and h.
"""

import math
from collections.abc import Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import sqrtm

from coterie.models.hierarchy.drift import HalfLife
from tests.twins.drift import OWN, NaiveDrift
from tests.twins.payoffs import within_reach

Floats = NDArray[np.float64]
PHI = [0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98]
EARLY, VISITS, PANEL, GROWTH, WEAK = 16, 4, 8, 0.15, 5.0
START, NOISE, SPREAD, BROAD, FEATURES = 0.25, 0.5, 0.25, 4.0, 2.0  # shares of the payoffs' variance


class Prior:
    """The population, with the groups' means as information: G·μ = h."""

    def __init__(self, d: int) -> None:
        self.sigma = START * np.eye(d)
        self.G, self.h, self.share = [np.eye(d) / BROAD], [np.zeros(d)], [1.0]
        self.kappa, self.tau, self.start, self.rho = NOISE, SPREAD, START, 0.0

    def mean(self, g: int) -> Floats:
        mean: Floats = np.linalg.solve(self.G[g], self.h[g]).astype(np.float64)
        return mean

    def copy(self) -> "Prior":
        twin = Prior(len(self.sigma))
        twin.sigma, twin.kappa, twin.tau, twin.start = self.sigma.copy(), self.kappa, self.tau, self.start
        twin.rho = self.rho
        twin.G, twin.h = [G.copy() for G in self.G], [h.copy() for h in self.h]
        twin.share = list(self.share)
        return twin


class NaivePopulation:
    """One model. With `unit`, contexts are a constant and the unit vector of an item, added with the item."""

    def __init__(self, d: int, unit: bool, ids: bool, keep: float = 1.0) -> None:
        self.d, self.unit, self.ids, self.keep = (1 if unit else d), unit, ids, keep
        self.prior = Prior(self.d)
        self.trial: Prior | None = None
        self.paid: list[list[tuple[Floats, float, float]]] = []  # per user: x, target, weight
        self.counts: dict[int, float] = {}  # per user: the payoffs, less what faded
        self.error = 0.0  # of the last payoff, in standard deviations
        self.friends: dict[int, dict[int, float]] = {}  # of each row: rows and weights
        self.pairs: dict[tuple[int, Hashable], list[float]] = {}
        self.effects: dict[Hashable, tuple[float, float]] = {}
        self.phi, self.epsilon = 0.1, 0.0
        self.repeats = np.array([4 * math.log(1 - phi) for phi in PHI])
        self.learned, self.phase, self.cursor, self.credit, self.scale = 0, 0, 0, 0.0, 0.0
        self.payoffs: list[float] = []
        self.errors = [0.0, 0.0]  # of recent estimates: the sum of squares, and how many
        self.seen: list[Floats] = []  # the features of each payoff
        self.passes, self.next_trial, self.tried, self.better = 0, 100, 0, [0.0, 0.0]
        self.visited: list[tuple[Any, Any]] = []
        self.compared: list[tuple[Any, Any]] = []
        self.late: list[tuple[int, Floats, float, float]] = []  # group, z, weight / variance, target

    def widen(self, d: int) -> None:
        """Add the entries of new items."""
        for prior in (self.prior, self.trial):
            if prior is None:
                continue
            more = d - len(prior.sigma)
            prior.sigma = _padded(prior.sigma, more, prior.start)
            prior.G = [_padded(G, more, 1 / prior.tau) for G in prior.G]
            prior.h = [np.append(h, np.zeros(more)) for h in prior.h]
        self.paid = [[(_long(x, d), y, v) for x, y, v in own] for own in self.paid]
        self.d = d

    def payoff_variance(self) -> float:
        """Return the variance of the payoffs; 1 while they are all equal."""
        varied = len(set(self.payoffs)) > 1
        return float(np.var(self.payoffs)) if varied else 1.0

    def by_scale(self, constant: float, features: float) -> Any:
        """Return the covariance of weights whose features have their means removed: a diagonal, turned back."""
        found = np.full(self.d, constant * self.payoff_variance())
        turn = np.eye(self.d)
        if not self.unit and self.seen:
            turn[0, 1:] = -np.mean(self.seen, axis=0)
            spread = np.std(self.seen, axis=0)
            spread[[len(set(column)) == 1 for column in np.transpose(self.seen)]] = 0.0
            if (spread > 0).any():
                middle = np.median(spread[spread > 0])
                spread[spread == 0] = middle
                counted = np.clip(spread, middle / 10, middle * 10)
                found[1:] = features * self.payoff_variance() * (counted / spread) ** 2 / (counted @ counted)
        return turn @ np.diag(found) @ turn.T

    def broad(self, prior: Prior) -> Any:
        """Return the prior covariance of a group's mean."""
        found = self.by_scale(BROAD, FEATURES)
        if self.unit:
            found[range(1, self.d), range(1, self.d)] = prior.tau
        return found

    def deviation(self, row: int | None) -> Any:
        """Return v: what the payoffs of the friends say together, as those of one user with the prior mean 0."""
        prior, share = self.prior, np.array(self.prior.share)
        mean = sum((r * prior.mean(g) for g, r in enumerate(share)), np.zeros(self.d))
        S, b = np.zeros((self.d, self.d)), np.zeros(self.d)
        for other, a in ({} if row is None else self.friends.get(row, {})).items():
            for x, y, v in self.paid[other]:
                S += a * v * np.outer(x, x)
                b += a * v * x * (y - x @ mean)
        return np.linalg.solve(np.linalg.inv(prior.sigma) + S / prior.kappa, b / prior.kappa)

    def shift(self, row: int | None) -> Any:
        """Return the part of a user's prior mean that is due to the friends."""
        return self.prior.rho * self.deviation(row)

    def own(self, row: int | None) -> list[tuple[Floats, float, float]]:
        """Return a user's payoffs without the part that is due to the friends."""
        shift = self.shift(row)
        return [] if row is None else [(x, y - float(shift @ x), v) for x, y, v in self.paid[row]]

    def posterior(self, prior: Prior, row: int | None) -> tuple[Any, list[Any], Any, float]:
        """Return C, each group's m, the groups' probabilities, and the log evidence of the user's payoffs.

        All of it is of payoffs without the part that is due to the friends; `shift` has that part.
        """
        P = np.linalg.inv(prior.sigma)
        own = self.own(row)
        S = sum((v * np.outer(x, x) for x, _, v in own), np.zeros((self.d, self.d)))
        b = sum((v * y * x for x, y, v in own), np.zeros(self.d))
        C = np.linalg.inv(P + S / prior.kappa)
        m, log = [], []
        for g in range(len(prior.share)):
            mu = prior.mean(g)
            pull = P @ mu + b / prior.kappa
            m.append(C @ pull)
            log.append(math.log(prior.share[g]) + pull @ C @ pull / 2 - mu @ P @ mu / 2)
        top = max(log)
        chance = np.exp(np.array(log) - top)
        evidence = (
            top + math.log(chance.sum()) + 0.5 * np.linalg.slogdet(P)[1] + 0.5 * np.linalg.slogdet(C)[1]
        )
        squares = sum(v * y * y for _, y, v in own)
        evidence -= 0.5 * (
            (0.0 if row is None else self.counts.get(row, 0.0)) * math.log(prior.kappa)
            + squares / prior.kappa
        )
        return C, m, chance / chance.sum(), evidence

    def total_weight(self, n: int) -> float:
        """Return the total weight of n payoffs of a user."""
        return float(sum(self.keep**age for age in range(n)))

    def relative_noise(self, estimate: float) -> float:
        """Return p·(1 − p) at an estimate as a share of that at the mean, if payoffs have two values."""
        low, high = min(self.payoffs, default=0.0), max(self.payoffs, default=0.0)
        if len(set(self.payoffs)) != 2 or self.learned < 3:
            return 1.0
        share = (np.mean(self.payoffs) - low) / (high - low)
        least = min(share, 1 - share) / 2
        p = np.clip((estimate - low) / (high - low), least, 1 - least)
        return float(p * (1 - p) / (share * (1 - share)))

    def effect(self, item: Hashable) -> tuple[float, float]:
        tau = self.prior.tau
        if item not in self.effects:
            return self.epsilon, tau
        precision, pull = self.effects[item]
        doubt = 1 / (1 / tau + precision)
        return doubt * (pull + self.epsilon / tau), doubt

    def parts(self, row: int | None, x: Floats, item: Hashable, new: bool) -> tuple[float, float]:
        """Return the estimate of a candidate, and the variance of what all users' payoffs can teach."""
        if not self.unit and (not self.seen or (np.array(self.seen) == self.seen[0]).all()):
            x = _long(
                np.append(1.0, np.mean(self.seen, axis=0) if self.seen else []), len(x)
            )  # nothing has varied
        C, m, chance, _ = self.posterior(self.prior, row)
        P = np.linalg.inv(self.prior.sigma)
        z = P @ C @ x
        means = np.array([(own + self.shift(row)) @ x for own in m])
        estimate = float(chance @ means)
        variance = sum(r * r * (z @ np.linalg.inv(G) @ z) for r, G in zip(chance, self.prior.G, strict=True))
        if self.unit and new:
            variance += self.prior.tau
        if self.ids:
            effect, doubt = self.effect(item)
            often = self.learned / max(len(self.effects), 1)
            estimate, variance = estimate + effect, variance + doubt * often / (often + 30)
            n, total = self.pairs.get((row, item), (0, 0.0)) if row is not None else (0, 0.0)
            omega, noise = self.phi * self.prior.kappa, (1 - self.phi) * self.prior.kappa
            told = n * omega / (noise + n * omega)
            if n:
                estimate = (1 - told) * estimate + told * total / n
            variance = (1 - told) ** 2 * variance
        return estimate, float(variance)

    def learn(self, row: int, x: Floats, item: Hashable, payoff: float) -> None:
        if len(x) > self.d:
            self.widen(len(x))
        prior = self.prior
        C, m, chance, _ = self.posterior(prior, row)
        shift = self.shift(row)
        m = [w + shift for w in m]
        given = x
        if not self.unit and self.seen and not np.ptp(self.seen, axis=0).any():  # no feature has varied
            x = np.append(1.0, np.mean(self.seen, axis=0))
        z = np.linalg.inv(prior.sigma) @ C @ x
        own, variance = float(chance @ [w @ x for w in m]), x @ C @ x
        doubt_mean = sum(r * r * (z @ np.linalg.inv(G) @ z) for r, G in zip(chance, prior.G, strict=True))
        if not self.learned:  # nothing is known of scales
            own, variance, doubt_mean = payoff, prior.sigma[0, 0], 1 / prior.G[0][0, 0]
        seen, effect, doubt = payoff, 0.0, 0.0
        if self.ids:
            effect, doubt = self.effect(item)
        crowd = sum(r * (prior.mean(g) @ x) for g, r in enumerate(prior.share))
        noisy = 1.0 if self.unit else self.relative_noise(float(crowd) + effect)
        blur = noisy * prior.kappa
        if self.ids:
            n, total = self.pairs.get((row, item), (0, 0.0))
            if n:
                self.repeats += [
                    _log_repeat(
                        phi, prior.kappa, n, total / n, payoff, own + effect, variance + doubt_mean + doubt
                    )
                    for phi in PHI
                ]
                told = n * self.phi / (1 - self.phi + n * self.phi)
                seen = (payoff - told * total / n) / (1 - told)
                blur = noisy * prior.kappa * (1 - self.phi + self.phi * (1 - told)) / (1 - told) ** 2
            precision, pull = self.effects.get(item, (0.0, 0.0))
            more = 1 / (blur + variance + doubt_mean)
            self.effects[item] = (precision + more, pull + more * (seen - own))
            for pair, (count, paid) in self.pairs.items():
                if pair[0] == row:
                    self.pairs[pair] = [self.keep * count, self.keep * paid]
            n, total = self.pairs.get((row, item), (0, 0.0))
            self.pairs[row, item] = [n + 1, total + payoff]
        variance, target = variance + blur + doubt, seen - effect
        self.error = float(target - own) / math.sqrt(variance)
        chance = chance * [math.exp(-((target - w @ x) ** 2) / variance / 2) for w in m]
        chance = chance / chance.sum() if chance.sum() else np.full(len(chance), 1 / len(chance))
        if self.trial is not None and self.paid[row]:
            _, m2, chance2, _ = self.posterior(self.trial, row)
            other = float(chance2 @ [(w + shift) @ x for w in m2])
            better = (target - own) ** 2 - (target - other) ** 2
            self.better[0] += better
            self.better[1] += better**2
        b = sum((v * y * c for c, y, v in self.own(row)), np.zeros(self.d))
        rest = float(target - x @ shift - x @ C @ b / prior.kappa)
        for g, r in enumerate(chance):
            if r >= 1e-6:
                prior.G[g] = prior.G[g] + r / variance * np.outer(z, z)
                prior.h[g] = prior.h[g] + r / variance * z * rest
                if self.phase == 1 and row < self.cursor:
                    self.late.append((g, z, float(r / variance), rest))
        self.paid[row] = [(c, y, self.keep * v) for c, y, v in self.paid[row]]
        self.paid[row].append((given, target, prior.kappa / (blur + doubt)))
        self.counts[row] = self.keep * self.counts.get(row, 0.0) + 1
        if self.learned:
            self.errors = [self.errors[0] + (payoff - own - effect) ** 2, self.errors[1] + 1]
        self.payoffs.append(payoff)
        self.seen.append(given[1:])
        self.learned += 1

    def refit(self) -> None:
        """Visit a few users, and refit at the end of a pass."""
        varied = len(set(self.payoffs)) > 1
        if self.learned <= EARLY or not self.scale:
            if (self.learned <= EARLY and self.learned in (1, 2, 4, 8, 16)) or (varied and not self.scale):
                self.start_again()
            return
        fresh = min(self.learned, len(self.paid) * self.total_weight(self.learned))
        self.credit += min(2 * len(self.paid) / (GROWTH * fresh), VISITS)
        while self.credit >= min(PANEL, len(self.paid) - self.cursor):
            for row in range(self.cursor, min(self.cursor + PANEL, len(self.paid))):
                self.credit -= 1
                self.cursor += 1
                if self.paid[row]:
                    found = self.posterior(self.prior, row)
                    tried = None if self.trial is None else self.posterior(self.trial, row)
                    means = [self.prior.mean(g) for g in range(len(self.prior.share))]
                    facts = (self.own(row), means, self.counts[row])
                    told = (
                        self.compare(self.prior, row),
                        None if self.trial is None else self.compare(self.trial, row),
                    )
                    self.compared.append(told)
                    self.visited.append(((row, found, *facts), tried))
            if self.cursor >= len(self.paid):
                self.end_pass()
                return

    def compare(self, prior: Prior, row: int) -> tuple[float, float]:
        """Return pull and precision of ρ: least squares of the user's payoffs on x·v."""
        if row not in self.friends:
            return 0.0, 0.0
        X = np.array([math.sqrt(v) * x for x, _, v in self.paid[row]])
        K = np.linalg.inv(X @ prior.sigma @ X.T + prior.kappa * np.eye(len(X)))
        said = X @ self.deviation(row)
        chance, pull = self.posterior(prior, row)[2], 0.0
        for g, r in enumerate(chance):
            y = np.array([math.sqrt(v) * (y - x @ prior.mean(g)) for x, y, v in self.paid[row]])
            pull += r * (said @ K @ y)
        return float(pull), float(said @ K @ said)

    def start_again(self) -> None:
        """Set all variances by the variance of payoffs and features, and compute the means."""
        variance, prior = self.payoff_variance(), self.prior
        ratio = variance / (self.scale or 1.0)
        self.scale = variance if len(set(self.payoffs)) > 1 else 0.0
        prior.kappa, prior.tau, prior.start = NOISE * variance, SPREAD * variance, START * variance
        self.effects = {item: (p / ratio, pull / ratio) for item, (p, pull) in self.effects.items()}
        prior.sigma = self.by_scale(START, START)
        rows = [row for row, own in enumerate(self.paid) if own]
        self.new_means(prior, [self.posterior(prior, row) for row in rows], rows, [])

    def end_pass(self) -> None:
        main = [one for one, _ in self.visited]
        beside = (
            []
            if self.trial is None
            else [
                (row, tried, own, [self.trial.mean(g) for g in range(len(self.trial.share))], count)
                for (row, _, own, _, count), tried in self.visited
            ]
        )
        trial = self.trial
        if self.phase == 0:
            taken = trial is not None and self.judge(main, beside)
            if taken and trial is not None:
                self.prior = trial
                main = beside
            noise = self.prior.kappa
            self.new_variances(self.prior, main)
            ratio = noise / self.prior.kappa
            self.effects = {item: (p * ratio, pull * ratio) for item, (p, pull) in self.effects.items()}
            pull, known = np.sum([told[1 if taken else 0] for told in self.compared], axis=0)
            self.prior.rho = pull / (known + 1)
            if self.trial is not None:
                self.new_variances(self.trial, beside)
            if self.ids:
                self.new_effects()
            self.errors = [0.9 * part for part in self.errors]
        else:
            rows = [row for row, *_ in main]
            facts = [own for _, _, own, *_ in main]
            self.new_means(self.prior, [found for _, found, *_ in main], rows, self.late, facts)
            if trial is not None:
                self.new_means(trial, [found for _, found, *_ in beside], rows, [], facts)
        self.phase, self.cursor, self.visited, self.late = 1 - self.phase, 0, [], []
        self.compared = []
        k = len(self.prior.share)
        ready = self.phase == 0 and self.trial is None and self.learned >= self.next_trial
        if ready and self.d > 1 and k < 8 and len(self.paid) >= 10 * (k + 1):
            self.split()

    def new_variances(self, prior: Prior, visits: list[Any]) -> None:
        """Do one step with the expectations of squared errors and of the groups' sizes, and for the covariance Γ.

        Γ·M·Γ = R: M is the information of all payoffs on the weights, and R the sum of (w − μ)(w − μ)ᵀ.
        """
        n, k, d = len(visits), len(prior.share), self.d
        errors, payoffs, sizes = 0.0, 0.0, np.zeros(k)
        P, start = np.linalg.inv(prior.sigma), self.by_scale(START, START)
        M, R = WEAK * P, WEAK * start
        for _, (C, m, chance, _), own, means, count in visits:
            C, m, means = (
                _padded(C, d - len(C), prior.start),
                [_long(w, d) for w in m],
                [_long(w, d) for w in means],
            )
            M = M + P @ (prior.sigma - C) @ P
            for r, w, mu in zip(chance, m, means, strict=True):
                R = R + r * np.outer(w - mu, w - mu)
            for x, y, v in own:
                x = _long(x, d)
                errors += v * (x @ C @ x + sum(r * (y - w @ x) ** 2 for r, w in zip(chance, m, strict=True)))
            payoffs += count
            sizes += chance
        root = np.real(sqrtm(M))
        back = np.linalg.inv(root)
        prior.sigma = back @ np.real(sqrtm(root @ R @ root)) @ back
        prior.kappa = (errors + WEAK * NOISE * self.payoff_variance()) / (payoffs + WEAK)
        if len(set(self.payoffs)) == 2 and self.errors[1]:
            prior.kappa = max(prior.kappa, 0.75 * self.errors[0] / self.errors[1])
        prior.start = START * self.payoff_variance()
        prior.share = [(size + 1) / (n + k) for size in sizes]

    def new_means(
        self, prior: Prior, visits: list[Any], rows: list[int], late: list[Any], facts: Any = None
    ) -> None:
        d, P = self.d, np.linalg.inv(prior.sigma)
        broad = np.linalg.inv(self.broad(prior))
        facts = [self.own(row) for row in rows] if facts is None else facts
        for g in range(len(prior.share)):
            G, h = broad.copy(), broad[:, 0] * np.mean(self.payoffs)
            for (C, _, chance, _), own in zip(visits, facts, strict=True):
                C = _padded(C, d - len(C), prior.start)
                b = sum((v * y * _long(x, d) for x, y, v in own), np.zeros(d))
                G += chance[g] * (P - P @ C @ P)
                h += chance[g] * P @ C @ b / prior.kappa
            for group, z, weight, rest in late:
                if group == g:
                    z = _long(z, d)
                    G += weight * np.outer(z, z)
                    h += weight * z * rest
            prior.G[g], prior.h[g] = G, h
        if self.unit:
            means = np.array([prior.mean(g)[1:] for g in range(len(prior.share))])
            doubts = np.array([np.diag(np.linalg.inv(G))[1:] for G in prior.G])
            weak = WEAK * SPREAD * self.payoff_variance()
            prior.tau = float(((means**2).sum() + weak) / ((1 - doubts / prior.tau).sum() + WEAK))

    def new_effects(self) -> None:
        sites, tau, unit = list(self.effects.values()), self.prior.tau, self.payoff_variance()
        doubt = [1 / (1 / tau + precision) for precision, _ in sites]
        apart = [
            d * (pull + self.epsilon / tau) - self.epsilon for d, (_, pull) in zip(doubt, sites, strict=True)
        ]
        weight = [1 / (tau + 1 / precision) for precision, _ in sites]
        at = [pull / precision for precision, pull in sites]
        self.epsilon = sum(w * a for w, a in zip(weight, at, strict=True)) / (sum(weight) + 1 / BROAD / unit)
        free = sum(1 - d / tau for d in doubt)
        self.prior.tau = (sum(a * a for a in apart) + WEAK * SPREAD * unit) / (free + WEAK)
        if self.trial is not None:
            self.trial.tau = self.prior.tau
        chance = np.exp(self.repeats - self.repeats.max())
        self.phi = float(chance @ PHI / chance.sum())

    def split(self) -> None:
        trial, largest = self.prior.copy(), int(np.argmax(self.prior.share))
        # Directions are compared by what they add to payoffs.
        turn = np.linalg.cholesky(self.by_scale(1.0, 1.0)[::-1, ::-1])[::-1, ::-1] / math.sqrt(
            self.payoff_variance()
        )
        back = np.linalg.inv(turn)
        values, vectors = np.linalg.eigh(back @ self.prior.sigma @ back.T)
        which = self.d - 1 - self.tried % min(3, self.d)
        axis = vectors[:, which] * np.sign(vectors[np.argmax(np.abs(vectors[:, which])), which])
        step = 0.8 * math.sqrt(values[which]) * turn @ axis
        trial.sigma = trial.sigma - trial.share[largest] * np.outer(step, step)
        mu, G = trial.mean(largest), trial.G[largest]
        trial.h[largest] = G @ (mu + step)
        trial.G.append(G.copy())
        trial.h.append(G @ (mu - step))
        trial.share[largest] /= 2
        trial.share.append(trial.share[largest])
        self.trial, self.passes, self.better = trial, 0, [0.0, 0.0]
        self.tried += 1

    def judge(self, main: list[Any], beside: list[Any]) -> bool:
        self.passes += 1
        gain = sum(found[3] for _, found, *_ in beside) - sum(found[3] for _, found, *_ in main)
        price = (self.d + 1) / 2 * math.log(len(main))
        if self.passes >= 4 and gain > price and self.better[0] > 2 * math.sqrt(self.better[1]):
            self.trial, self.next_trial = None, self.learned
            return True
        if self.passes >= (24 if gain > price else 12):
            self.trial, self.next_trial = None, self.learned * 3 // 2
        return False


class NaiveHierarchical:
    """Contexts are (id or None, features or None); features are a plain array."""

    def __init__(
        self, n_features: int | None, one_hot: bool, explore: float, half_life: HalfLife = None
    ) -> None:
        self.n_features, self.one_hot, self.explore = n_features, one_hot, explore
        self.rows: dict[Hashable, int] = {}
        self.items: dict[Hashable, int] = {}
        self.drift = NaiveDrift() if half_life == "learned" else None
        keep = 1.0 if half_life is None or half_life == "learned" else 0.5 ** (1 / float(half_life))
        self.many = NaivePopulation(1 + (n_features or 0), False, one_hot, keep)
        self.few: NaivePopulation | None = None
        if n_features is None:
            self.few = NaivePopulation(1, True, False, keep)

    def set_friends(self, user: Hashable, friends: dict[Hashable, float]) -> None:
        """Give a user these friends and no others."""
        for name in (user, *friends):
            self.add(name)
        for model in filter(None, (self.many, self.few)):
            row = self.rows[user]
            for others in model.friends.values():
                others.pop(row, None)
            model.friends[row] = {self.rows[name]: weight for name, weight in friends.items()}
            for other, weight in model.friends[row].items():
                model.friends.setdefault(other, {})[row] = weight

    def add(self, user: Hashable) -> None:
        if user not in self.rows:
            self.rows[user] = len(self.rows)
            for model in (self.many, self.few):
                if model is not None:
                    model.paid.append([])

    def scores(self, user: Hashable, contexts: list[tuple[Any, Any]]) -> tuple[Floats, Floats]:
        """Return the scores, and the widths of their draws."""
        model, row = self.few or self.many, self.rows.get(user)
        found = []
        for item, features in contexts:
            x = self.context(model, item, features)
            estimate, variance = model.parts(row, x, item, item not in self.items)
            found.append(
                (estimate + self.explore * math.sqrt(variance), self.explore * math.sqrt(variance) / 2)
            )
        return np.array(found).T  # type: ignore[return-value]

    def context(self, model: NaivePopulation, item: Hashable, features: Any) -> Floats:
        if model.unit:
            x = np.zeros(max(model.d, 1))
            x[0] = 1
            if item in self.items and self.items[item] + 1 < model.d:
                x[self.items[item] + 1] = 1
            return x
        return np.concatenate([[1.0], [] if self.n_features is None else features])

    def learn(self, user: Hashable, item: Hashable, features: Any, payoff: float) -> None:
        self.add(user)
        row, payoff = self.rows[user], within_reach(self.many.payoffs, payoff)
        if self.one_hot:
            self.items.setdefault(item, len(self.items))
            if self.items[item] >= 64:
                self.few = None
        if self.few is not None:
            x = np.zeros(max(self.few.d, self.items[item] + 2))
            x[0] = x[self.items[item] + 1] = 1
            self.few.learn(row, x, item, payoff)
        self.many.learn(row, self.context(self.many, item, features), item, payoff)
        if self.drift is not None and self.many.learned > 1:
            self.watch(self.drift, row, item, features)
        for model in (self.few, self.many):
            if model is not None:
                model.refit()

    def watch(self, drift: NaiveDrift, row: int, item: Hashable, features: Any) -> None:
        """Look whether the last payoff says that tastes change."""
        found, learned = {0: 1.0}, self.many.learned
        if self.few is None and self.n_features:
            seen = np.array(self.many.seen)
            spread = seen.std(axis=0)
            for i, x in enumerate(features):
                found[i + 1] = float((x - seen[:, i].mean()) / spread[i]) if np.ptp(seen[:, i]) else 0.0
        if self.one_hot:
            found[self.items[item] + 2**32] = 1.0
        error = (self.few or self.many).error
        drift.watch(OWN, row, found, error, learned, len(self.rows))
        drift.decide(learned, len(self.rows))
        for model in filter(None, (self.few, self.many)):
            model.keep = drift.keep


def _log_repeat(
    phi: float, kappa: float, n: float, before: float, payoff: float, estimate: float, variance: float
) -> float:
    """Return the log density of a payoff after n payoffs of the same pair, up to a constant."""
    omega, noise = phi * kappa, (1 - phi) * kappa
    told = n * omega / (noise + n * omega)
    wide = noise + omega * (1 - told) + (1 - told) ** 2 * variance
    return -0.5 * (math.log(wide) + (payoff - (1 - told) * estimate - told * before) ** 2 / wide)


def _padded(matrix: Floats, more: int, diagonal: float) -> Floats:
    d = len(matrix)
    found = diagonal * np.eye(d + more)
    found[:d, :d] = matrix
    return found


def _long(x: Floats, d: int) -> Floats:
    return np.append(x, np.zeros(d - len(x)))
