"""Regressions of many users under one prior that is learned from all of them.

The model, and how one user's payoffs are learned, are told in `_kernels/hierarchy/population.py`. Here is what a
pass over all users ends in. Passes take turns: one ends in new variances (an EM step), the next in new means of
the groups (generalised least squares). Neither lowers the likelihood. A trial with one more group is fitted beside,
in the same visits, and is taken if its evidence is better by more than the price of its parameters (BIC).
"""

import math
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from coterie.errors import FileError
from coterie.models.files import Tensors, take
from coterie.models.rows.ridge_rows import Compiled, kernels

Floats = NDArray[np.float64]

GROUPS = 8  # at most
EXPLAINED = 0.05  # the variance that features explain before anything is learned, whatever their scale
BROAD_EXPLAINED = 0.25  # what the population's mean of the features may explain
KAPPA, PHI, TAU = 0.1, 0.1, 0.05  # κ, φ and τ² before anything is learned
RARELY = 4.0  # φ's prior is ∝ (1 − φ)^RARELY: that a pair has an effect of its own is to be shown by repeats
BROAD_EFFECT = 1.0  # the prior variance of ε
WEAK = 5.0  # a learned variance also sees so many observations of its start
TRIAL_FROM = 100  # payoffs before the first trial
TRIAL_FIRST, TRIAL_LAST = 4, 12  # passes after which a trial may be taken, and after which it ends
DIRECTIONS = 3  # in which a group is split, one trial after the other
APART = 0.8  # how far from the old mean the two halves of a split group begin, in standard deviations
SURE = 2.0  # standard errors by which a trial's predictions have to be better: evidence alone also rewards groups
# that only mimic the skew of payoffs of 0 and 1
LARGE = 4 * 2**20  # bytes from which an array is not grown by copying
SOUND = 1e-6  # how far rounding may have taken an inverse from what it inverts


@final
class Population(Compiled):
    """One model, over contexts of `n_weights` entries, of which the first is the constant.

    `unit` says that the others stand for items, and that pairs of user and item tell a user's facts; `ids` that
    items have effects of their own. A user's payoff counts `keep` of what it did after each later one.
    """

    def __init__(self, n_weights: int, *, unit: bool = False, ids: bool = False, keep: float = 1.0) -> None:
        super().__init__("hierarchy.population")
        self.n_weights, self.unit, self.ids, self.keep = n_weights, unit, ids, keep
        self.model = self._make(16, 16)
        self.visits: Callable[[Any, Any, int, int], None] | None = None  # for rows that are kept elsewhere

    def _make(self, rows: int, items: int) -> Any:
        code, d = self.code, self.n_weights
        width = 0 if self.unit else d
        place = np.zeros(12, dtype=np.int64)
        place[code.USED] = 1 if self.unit else d
        place[code.NEXT] = TRIAL_FROM
        place[code.UNIT], place[code.IDS] = self.unit, self.ids
        users = (np.zeros((rows, width * (width + 1) // 2)), np.zeros((rows, width)), np.zeros(rows))
        return code.Model(
            self._prior(),
            code.Users(*users, np.zeros(rows, dtype=np.int64)),
            np.zeros((items, 2)),
            self._sums(),
            self._sums(),
            np.zeros((GROUPS, d, d)),
            np.zeros((GROUPS, d)),
            self._prior(),
            self._sums(),
            RARELY * np.log1p(-code.PHI),
            place,
            np.zeros(4),
            np.array([self.keep]),
        )

    def _prior(self) -> Any:
        code, d = self.code, self.n_weights
        return code.Prior(
            code.START * np.eye(d),
            np.eye(d) / code.START,
            np.zeros((GROUPS, d)),
            np.tile(code.BROAD * np.eye(d), (GROUPS, 1, 1)),
            np.ones(GROUPS),
            np.array([KAPPA, PHI, TAU, 0.0]),
            np.ones(1, dtype=np.int64),
        )

    def _sums(self) -> Any:
        d = self.n_weights
        square, line = (GROUPS, d, d), (GROUPS, d)
        shapes: tuple[tuple[int, ...], ...] = (square, (d, d), line, (GROUPS,), square, line, (4,))
        return self.code.Sums(*(np.zeros(shape) for shape in shapes))

    @property
    def code(self) -> Any:
        """The compiled functions, and the names of what `model` holds."""
        return self._kernels

    @property
    def n_rows(self) -> int:
        """How many users have a row."""
        return int(self.model.place[self.code.ROWS])

    @property
    def n_used(self) -> int:
        """How many entries of a context are in use."""
        return int(self.model.place[self.code.USED])

    @property
    def n_groups(self) -> int:
        """How many groups there are."""
        return int(self.model.prior.groups[0])

    def visit(self, model: Any, pairs: Any, first: int, last: int) -> None:
        """Add some users to the sums of a model, which is this one or like it."""
        (self.visits or self.code.visit_rows)(model, pairs, first, last)

    # What a pass ends in.

    def settle(self, pairs: Any, n_items: int) -> None:
        """Learn from a pass over the users, if one is due to end."""
        code, place = self.code, self.model.place
        if not place[code.DUE]:
            return
        place[code.DUE] = 0
        if place[code.LEARNED] <= code.EARLY:
            self._begin(pairs)
        else:
            self._end_pass(n_items)

    def _begin(self, pairs: Any) -> None:
        """Take the features' scale and the population's mean from the first few payoffs, all at once."""
        code, model = self.code, self.model
        prior = model.prior
        np.fill_diagonal(prior.covariance, self._start())
        np.fill_diagonal(prior.precision, 1 / self._start())
        model.place[code.PHASE] = 1
        self.visit(model, pairs, 0, self.n_rows)
        self._new_means(prior, model.sums)
        self._next_pass()
        model.place[code.PHASE] = 0

    def _end_pass(self, n_items: int) -> None:
        code, model, place = self.code, self.model, self.model.place
        on_trial = bool(place[code.TRIAL])
        if place[code.PHASE] == 0:
            taken = on_trial and self._judge()
            self._new_variances(model.prior, model.trial_sums if taken else model.sums)
            if place[code.TRIAL]:
                self._new_variances(model.trial, model.trial_sums)
            if self.ids:
                self._new_effects(n_items)
        else:
            self._new_means(model.prior, model.sums)
            if on_trial:
                self._new_means(model.trial, model.trial_sums)
        place[code.PHASE] = 1 - place[code.PHASE]
        self._next_pass()
        ready = place[code.PHASE] == 0 and not place[code.TRIAL] and place[code.LEARNED] >= place[code.NEXT]
        many = (
            self.n_used > 1 and self.n_groups < GROUPS
        )  # with the constant alone there are no tastes to tell
        if ready and many and self.n_rows >= 10 * (self.n_groups + 1):
            self._split()

    def _next_pass(self) -> None:
        self.model.place[self.code.CURSOR] = 0
        for array in (*self.model.sums, *self.model.trial_sums):
            array[:] = 0

    def _start(self) -> Floats:
        """Return the variance of each weight before anything is learned: (n_weights,)."""
        return self._by_scale(self.code.START, EXPLAINED)

    def _by_scale(self, plain: float, explained: float) -> Floats:
        """Return `plain` for the constant and for items, and for features what together explains `explained`."""
        found = np.full(self.n_weights, plain)
        if not self.unit and self.model.pace[1] > 0:
            found[1:] = explained * self.model.place[self.code.LEARNED] / self.model.pace[1]
        return found

    def _new_variances(self, prior: Any, sums: Any) -> None:
        """Take covariance, noise and shares of groups from a pass: one step of EM, with a weak prior."""
        d, k, kept = self.n_used, int(prior.groups[0]), self.model.kept
        errors, payoffs, _, users = sums.total + kept.total
        total = (
            self._scatter(prior, sums)
            + (kept.pools[0] + kept.scatter + WEAK * np.diag(self._start()))[:d, :d]
        )
        prior.covariance[:d, :d] = total / (users + WEAK)
        if not self.unit:
            prior.precision[:d, :d] = self._inverse(prior.covariance[:d, :d])
        prior.noise[0] = (errors + WEAK * KAPPA) / (payoffs + WEAK)
        prior.share[:k] = (sums.weight[:k] + kept.weight[:k] + 1) / (users + k)

    def _scatter(self, prior: Any, sums: Any) -> Floats:
        """Return what a pass adds up of the users' C + Σ r (m − mean)(m − mean)ᵀ; with ids it adds up W alone."""
        d = self.n_used
        if not self.unit:
            return np.asarray(sums.pools[0] + sums.scatter)[:d, :d]
        covariance = prior.covariance[:d, :d]
        found = sums.total[3] * covariance - covariance @ sums.pools[0, :d, :d] @ covariance
        return np.asarray((found + found.T) / 2)

    def _new_means(self, prior: Any, sums: Any) -> None:
        """Take the groups' means from a pass: generalised least squares, every user by the chance to be there."""
        d, model = self.n_used, self.model
        broad = self._by_scale(self.code.BROAD, BROAD_EXPLAINED)[:d]
        for g in range(int(prior.groups[0])):
            known, pulls = self._information(prior, sums, g)
            known += model.kept_known[g, :d, :d] + np.diag(1 / broad)
            doubt = self._inverse((known + known.T) / 2)
            prior.doubt[g, :d, :d] = doubt
            prior.means[g, :d] = doubt @ (pulls + model.kept_pulls[g, :d])

    def _information(self, prior: Any, sums: Any, g: int) -> tuple[Floats, Floats]:
        """Return what a pass says of a group's mean, as precision and pull."""
        d = self.n_used
        if self.unit:
            return (sums.pools + sums.late)[g, :d, :d], (sums.pulls + sums.late_pulls)[g, :d]
        precision = prior.precision[:d, :d]
        known = sums.weight[g] * precision - precision @ sums.pools[g, :d, :d] @ precision
        return known + sums.late[g, :d, :d], precision @ sums.pulls[g, :d] + sums.late_pulls[g, :d]

    def _new_effects(self, n_items: int) -> None:
        """Take τ² and ε from the items' effects, and φ from the payoffs of pairs that paid before."""
        model, noise = self.model, self.model.prior.noise
        _, _, tau, epsilon = noise
        precision, pull = model.effects[:n_items][model.effects[:n_items, 0] > 0].T
        weight = 1 / (tau + 1 / precision)
        doubt = 1 / (1 / tau + precision)
        apart = doubt * (pull + epsilon / tau) - epsilon
        # MacKay's step, with as many squares as the data determine: EM's would take very long to leave a small τ².
        determined = (1 - doubt / tau).sum()
        noise[2] = (np.square(apart).sum() + WEAK * TAU) / (determined + WEAK)
        noise[3] = (weight * pull / precision).sum() / (weight.sum() + 1 / BROAD_EFFECT)
        chance = np.exp(model.repeats - model.repeats.max())
        noise[1] = float(chance @ self.code.PHI / chance.sum())
        model.trial.noise[1:] = noise[1:]

    def _split(self) -> None:
        """Begin a trial: the largest group becomes two, apart in a direction in which users differ much."""
        code, model, place = self.code, self.model, self.model.place
        prior, trial, d, k = model.prior, model.trial, self.n_used, self.n_groups
        for old, new in zip(prior, trial, strict=True):
            new[:] = old
        values, vectors = np.linalg.eigh(prior.covariance[:d, :d])
        which = d - 1 - int(place[code.TRIED]) % min(DIRECTIONS, d)
        axis = vectors[:, which] * np.sign(vectors[np.argmax(np.abs(vectors[:, which])), which])
        step = APART * math.sqrt(values[which]) * axis
        largest = int(np.argmax(prior.share[:k]))
        trial.covariance[:d, :d] -= prior.share[largest] * np.outer(step, step)
        if not self.unit:
            trial.precision[:d, :d] = self._inverse(trial.covariance[:d, :d])
        trial.share[[largest, k]] = prior.share[largest] / 2
        trial.means[k, :d] = prior.means[largest, :d] - step
        trial.means[largest, :d] += step
        trial.doubt[k] = prior.doubt[largest]
        trial.groups[0] = k + 1
        place[code.TRIAL], place[code.PASSES] = 1, 0
        model.pace[2:] = 0
        place[code.TRIED] += 1

    def _judge(self) -> bool:
        """Take the trial if its evidence pays for one more mean and share; end it if it had its time."""
        code, model, place = self.code, self.model, self.model.place
        place[code.PASSES] += 1
        price = (self.n_used + 1) / 2 * math.log(max(model.sums.total[3], 1.0))
        better = self._evidence(model.trial, model.trial_sums) - self._evidence(model.prior, model.sums)
        predicts = model.pace[2] > SURE * math.sqrt(model.pace[3])
        if place[code.PASSES] >= TRIAL_FIRST and better > price and predicts:
            for old, new in zip(model.prior, model.trial, strict=True):
                old[:] = new
            place[code.TRIAL], place[code.NEXT] = 0, place[code.LEARNED]
            return True
        if place[code.PASSES] >= (2 * TRIAL_LAST if better > price else TRIAL_LAST):
            place[code.TRIAL], place[code.NEXT] = 0, place[code.LEARNED] * 3 // 2
        return False

    def _evidence(self, prior: Any, sums: Any) -> float:
        """Return the log likelihood of all payoffs, as a pass over the users found it."""
        d = self.n_used
        _, _, found, users = sums.total
        if self.unit:
            return float(found)
        return float(found + users / 2 * np.linalg.slogdet(prior.precision[:d, :d])[1])

    def _inverse(self, matrix: Floats) -> Floats:
        """Return a symmetric matrix's inverse, with the same bits on every machine."""
        d = len(matrix)
        inverse = np.empty((d, d))
        kernels("spd").invert(np.array(matrix, order="C"), d, np.empty((d, d)), inverse)
        return inverse

    # Room, rows and files.

    def widen(self, n_weights: int) -> None:
        """Make room for so many weights, of items that are new."""
        if n_weights <= self.n_weights:
            return
        self.n_weights = min(max(n_weights, 2 * self.n_weights), 1 + kernels("hierarchy.loop").FEW)
        wider = self._make(len(self.model.users.times), len(self.model.effects))
        for old, new in zip(_arrays(self.model).values(), _arrays(wider).values(), strict=True):
            new[tuple(slice(length) for length in old.shape)] = old
        self.model = wider

    def fit(self, n_rows: int, n_items: int = 0) -> None:
        """Make room for so many rows and items in all."""
        users, effects = self.model.users, self.model.effects
        if min(len(array) for array in users) < n_rows or len(effects) < n_items:
            self.model = self.model._replace(
                users=type(users)(*(_longer(array, n_rows) for array in users)),
                effects=_longer(effects, n_items),
            )

    def become(self, other: "Population", rows: int) -> None:
        """Take over all of another model but its users, with room for so many."""
        self.n_weights = other.n_weights
        self.model = other.model._replace(users=self._make(max(16, rows), 0).users)

    def replace(self, row: int) -> None:
        """Forget a row, and let the last one take its place."""
        last = self.n_rows - 1
        for array in self.model.users:
            array[row] = array[last]
            array[last] = 0
        self.model.place[self.code.ROWS] = last

    def keep_of(self, row: int, pairs: Any) -> None:
        """Add what a user who leaves says of the population to sums that stay."""
        code, model, place = self.code, self.model, self.model.place
        phase = int(place[code.PHASE])
        for end in (0, 1):
            place[code.PHASE], own = end, self._sums()
            self.visit(model._replace(sums=own), pairs, row, row + 1)
            if end == 0:
                counted = own._replace(pools=np.zeros_like(own.pools), scatter=np.zeros_like(own.scatter))
                d = self.n_used
                counted.scatter[:d, :d] = self._scatter(model.prior, own)
                for sums, more in zip(model.kept, counted, strict=True):
                    sums += more
            for g in range(end * self.n_groups):
                known, pulls = self._information(model.prior, own, g)
                model.kept_known[g, : len(pulls), : len(pulls)] += known
                model.kept_pulls[g, : len(pulls)] += pulls
            if end == phase and row < place[code.CURSOR]:  # this pass has counted the user already
                for sums, more in zip(model.sums, own, strict=True):
                    sums -= more
        place[code.PHASE] = phase

    def tensors(self, prefix: str, n_items: int) -> Tensors:
        """Return everything as arrays."""
        found: Tensors = {}
        for name, array in _arrays(self.model).items():
            cut = self.n_rows if name.startswith("users_") else n_items if name == "effects" else len(array)
            found[f"{prefix}_{name}"] = array[:cut].copy()
        return found

    def restore(self, prefix: str, tensors: Tensors, n_rows: int, n_items: int) -> None:
        """Take over what `tensors` returned, if it is sound."""
        if self.unit:
            self.n_weights = take(tensors, f"{prefix}_prior_covariance", "f", (None, None)).shape[0]
        fresh = self._make(max(16, n_rows), max(16, n_items))
        for name, array in _arrays(fresh).items():
            cut = n_rows if name.startswith("users_") else n_items if name == "effects" else len(array)
            array[:cut] = take(tensors, f"{prefix}_{name}", array.dtype.kind, (cut, *array.shape[1:]))
        if not self._sound(fresh, n_rows):
            raise FileError(f"the model under {prefix!r} in the file contradicts itself")
        self.model = fresh

    def _sound(self, model: Any, n_rows: int) -> bool:
        code, place = self.code, model.place
        d = int(place[code.USED])
        flags = place[[code.PHASE, code.DUE, code.TRIAL]]
        return bool(
            place[code.ROWS] == n_rows
            and (place[code.UNIT], place[code.IDS]) == (self.unit, self.ids)
            and (place >= 0).all()
            and (flags <= 1).all()
            and 1 <= d <= self.n_weights
            and (model.users.times >= 0).all()
            and (model.users.square >= 0).all()
            and (model.effects[:, 0] >= 0).all()
            and all(_sound_prior(prior, d, self.unit) for prior in (model.prior, model.trial))
        )


def _sound_prior(prior: Any, d: int, unit: bool) -> bool:
    kappa, phi, tau, _ = prior.noise
    k = int(prior.groups[0])
    if not (kappa > 0 and 0 <= phi < 1 and tau > 0 and 1 <= k <= GROUPS):
        return False
    product = np.eye(d) if unit else prior.covariance[:d, :d] @ prior.precision[:d, :d]
    doubts = np.diagonal(prior.doubt[:k, :d, :d], axis1=1, axis2=2)
    return bool(
        np.abs(product - np.eye(d)).max() < SOUND * d
        and (np.diagonal(prior.covariance) > 0).all()
        and (doubts > 0).all()
        and (prior.share[:k] > 0).all()
    )


def _longer(array: Any, room: int) -> Any:
    """Return the same rows with room for so many at least.

    Copying gigabytes would hold up a decision, so a large array gets half of the machine's memory at once. That is
    only a claim on addresses: memory is taken as rows are written.
    """
    if len(array) >= room:
        return array
    room = max(room, 2 * len(array))
    width = array.itemsize * math.prod(array.shape[1:])
    if room * width > LARGE:
        with suppress(MemoryError, ValueError, OSError):
            whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            return _filled(array, max(room, whole // 2 // width))
    return _filled(array, room)


def _filled(array: Any, room: int) -> Any:
    fresh = np.zeros((room, *array.shape[1:]), dtype=array.dtype)
    fresh[: len(array)] = array
    return fresh


def _arrays(model: Any) -> dict[str, Any]:
    """Return all arrays of a model that files hold, by name."""
    found: dict[str, Any] = {}
    for name, value in zip(model._fields, model, strict=True):
        if name == "keep":  # follows from a parameter
            continue
        if isinstance(value, np.ndarray):
            found[name] = value
        else:
            found |= {f"{name}_{part}": array for part, array in value._asdict().items()}
    return found
