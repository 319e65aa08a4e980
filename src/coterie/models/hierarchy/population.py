"""The arrays of one model of many users under a learned prior: room, rows and files.

The compiled loops in `_kernels/hierarchy` decide and learn; `refit.py` computes new parameters from all users.
"""

import math
import os
from contextlib import suppress
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from coterie.errors import FileError
from coterie.models._kernels.hierarchy import arrays
from coterie.models._kernels.hierarchy.payoffs import HIGH_, LOW_, MEAN_, SQUARES_
from coterie.models._kernels.rows.means import Table, make
from coterie.models.files import Tensors, take
from coterie.models.ranges import MOST_LEARNED

GROUPS = 8  # at most
PHI = 0.1  # φ before anything is learned
# φ's prior is ∝ (1 − φ)^RARELY: only repeated payoffs can show that pairs have effects of their own.
RARELY = 4.0
TRIAL_FROM = 100  # payoffs before the first trial
LARGE = 4 * 2**20  # bytes; a larger array gets so much room that it is rarely copied again
SOUND = 1e-6  # tolerance for rounding in the check of an inverse
# Lengths in files from before friends were known; what is missing there is 0.
WITHOUT_FRIENDS = {
    "prior_noise": 5,
    "trial_noise": 5,
    "sums_total": 4,
    "kept_total": 4,
    "trial_sums_total": 4,
}


@final
class Population:
    """A model of contexts x with `n_weights` entries, of which the first is the constant 1.

    With `unit`, the other entries stand for items, and the pairs of user and item hold the users' statistics. With
    `ids`, items have effects of their own. `keep` is the factor of a user's old payoffs at each new one, and
    `friends` the table of edges between users.
    """

    positions = arrays  # the names of the entries of `model.place`, such as `positions.ROWS`

    def __init__(
        self,
        n_weights: int,
        *,
        unit: bool = False,
        ids: bool = False,
        keep: float = 1.0,
        friends: Table | None = None,
    ) -> None:
        self.n_weights, self.unit, self.ids, self.keep = n_weights, unit, ids, keep
        self._friends = make(1) if friends is None else friends
        self.grows = unit or n_weights == 1  # whether entries can be added later
        self.model = self._make(16, 16)

    def _make(self, rows: int, items: int) -> arrays.Model:
        d = self.n_weights
        width = 0 if self.unit else d
        place = np.zeros(13, dtype=np.int64)
        place[arrays.USED] = 1 if self.unit else d
        place[arrays.NEXT] = TRIAL_FROM
        place[arrays.UNIT], place[arrays.IDS] = self.unit, self.ids
        users = (np.zeros((rows, width * (width + 1) // 2)), np.zeros((rows, width)), np.zeros(rows))
        return arrays.Model(
            self._prior(),
            arrays.Users(*users, np.zeros(rows)),
            np.zeros((items, 2)),
            self.make_sums(),
            self.make_sums(),
            np.zeros((GROUPS, d, d)),
            np.zeros((GROUPS, d)),
            self._prior(),
            self.make_sums(),
            RARELY * np.log1p(-arrays.PHI),
            place,
            np.zeros(4),
            np.zeros((2, d)),
            np.zeros(7),
            np.array([self.keep]),
            self._friends,
        )

    def _prior(self) -> arrays.Prior:
        d = self.n_weights
        return arrays.Prior(
            arrays.START * np.eye(d),
            np.eye(d) / arrays.START,
            np.zeros((GROUPS, d)),
            np.tile(arrays.BROAD * np.eye(d), (GROUPS, 1, 1)),
            np.ones(GROUPS),
            np.array([arrays.NOISE, PHI, arrays.SPREAD, 0.0, arrays.START, 0.0]),
            np.ones(1, dtype=np.int64),
        )

    def make_sums(self) -> arrays.Sums:
        """Return the sums of a pass, all 0."""
        d = self.n_weights
        square, line = (GROUPS, d, d), (GROUPS, d)
        shapes: tuple[tuple[int, ...], ...] = (square, (d, d), line, (GROUPS,), square, line, (6,))
        return arrays.Sums(*(np.zeros(shape) for shape in shapes))

    @property
    def friends(self) -> Table:
        """The edges between users, by rows."""
        return self._friends

    @friends.setter
    def friends(self, friends: Table) -> None:
        self._friends = friends
        self.model = self.model._replace(friends=friends)

    @property
    def n_rows(self) -> int:
        """How many users have a row."""
        return int(self.model.place[arrays.ROWS])

    @n_rows.setter
    def n_rows(self, n_rows: int) -> None:
        self.model.place[arrays.ROWS] = n_rows

    @property
    def n_used(self) -> int:
        """How many entries of a context are in use."""
        return int(self.model.place[arrays.USED])

    @property
    def n_groups(self) -> int:
        """How many groups there are."""
        return int(self.model.prior.groups[0])

    def widen(self, n_weights: int, most: int = 1 + arrays.FEW) -> None:
        """Make room for so many weights, of items or features that are new; there will be at most `most`."""
        if n_weights <= self.n_weights:
            return
        self.n_weights = min(max(n_weights, 2 * self.n_weights), most)
        wider = self._make(len(self.model.users.weight), len(self.model.effects))
        for old, new in zip(_arrays(self.model).values(), _arrays(wider).values(), strict=True):
            new[tuple(slice(length) for length in old.shape)] = old
        self.model = wider

    def fit(self, n_rows: int, n_items: int = 0) -> None:
        """Make room for this total of rows and items."""
        users, effects = self.model.users, self.model.effects
        if min(len(array) for array in users) < n_rows or len(effects) < n_items:
            self.model = self.model._replace(
                users=type(users)(*(_longer(array, n_rows) for array in users)),
                effects=_longer(effects, n_items),
            )

    def replace(self, row: int) -> None:
        """Forget a row, and move the last one into its place."""
        last = self.n_rows - 1
        for array in self.model.users:
            array[row] = array[last]
            array[last] = 0
        self.n_rows = last

    def head(self, prefix: str, n_items: int) -> Tensors:
        """Return all but the users as arrays."""
        return {
            f"{prefix}_{name}": array[: _length(name, array, 0, n_items)].copy()
            for name, array in _arrays(self.model).items()
            if not name.startswith("users_")
        }

    def rows(self, prefix: str, first: int, last: int) -> Tensors:
        """Return the users in rows [first, last) as arrays."""
        users = self.model.users._asdict()
        return {f"{prefix}_users_{name}": array[first:last].copy() for name, array in users.items()}

    def restore(self, prefix: str, tensors: Tensors, n_rows: int, n_items: int) -> None:
        """Restore what `tensors` returned, if it is consistent."""
        if self.grows:
            self.n_weights = take(tensors, f"{prefix}_prior_covariance", "f", (None, None)).shape[0]
        fresh = self._make(max(16, n_rows), max(16, n_items))
        for name, array in _arrays(fresh).items():
            length = _length(name, array, n_rows, n_items)
            if np.shape(tensors.get(f"{prefix}_{name}", 0)) == (WITHOUT_FRIENDS.get(name),):
                length = WITHOUT_FRIENDS[name]
            array[:length] = take(tensors, f"{prefix}_{name}", array.dtype.kind, (length, *array.shape[1:]))
        if not self._sound(fresh, n_rows):
            raise FileError(f"the model under {prefix!r} in the file contradicts itself")
        self.model = fresh

    def _sound(self, model: arrays.Model, n_rows: int) -> bool:
        place = model.place
        d = int(place[arrays.USED])
        flags = place[[arrays.PHASE, arrays.DUE, arrays.TRIAL]]
        return bool(
            place[arrays.ROWS] == n_rows
            and (place[arrays.UNIT], place[arrays.IDS]) == (self.unit, self.ids)
            and (place >= 0).all()
            and (flags <= 1).all()
            and 1 <= d <= self.n_weights
            and (model.users.weight >= 0).all()
            and (model.users.square >= 0).all()
            and 0 < model.keep[0] <= 1
            and (model.effects[:, 0] >= 0).all()
            and (model.seen[1] >= 0).all()
            and (model.paid[[SQUARES_, arrays.ERRORS_, arrays.GUESSES_]] >= 0).all()
            and model.paid[LOW_] <= model.paid[MEAN_] <= model.paid[HIGH_]
            and (model.pace[arrays.SCALE_] == 0 or model.paid[LOW_] < model.paid[MEAN_] < model.paid[HIGH_])
            and model.pace[arrays.SCALE_] >= 0
            and (model.users.gram[:, _diagonal(model.users.moment.shape[1])] >= 0).all()
            and (np.stack([model.prior.noise, model.trial.noise])[:, [0, 2]] >= 1 / MOST_LEARNED).all()
            and all(_sound_prior(prior, d, self.unit) for prior in (model.prior, model.trial))
            and _sound_sums(model)
        )


def _diagonal(d: int) -> list[int]:
    """Return where the diagonal is in a packed lower triangle."""
    return [i * (i + 3) // 2 for i in range(d)]


def _sound_sums(model: arrays.Model) -> bool:
    """Return whether counts and sums of squares over dropped users are not negative, but for roundings."""
    kept = model.kept
    squares = [
        np.diagonal(array, axis1=-2, axis2=-1) for array in (kept.pools, kept.scatter, model.kept_known)
    ]
    parts = [*squares, kept.weight, kept.total[[0, 1, 3]]]
    return all(bool((part >= -SOUND).all()) for part in parts)


def _sound_prior(prior: arrays.Prior, d: int, unit: bool) -> bool:
    kappa, phi, tau, _, start, _ = prior.noise
    k = int(prior.groups[0])
    if not (kappa > 0 and 0 <= phi < 1 and tau > 0 and start > 0 and 1 <= k <= GROUPS):
        return False
    product = np.eye(d) if unit else prior.covariance[:d, :d] @ prior.precision[:d, :d]
    doubts = np.diagonal(prior.doubt[:k, :d, :d], axis1=1, axis2=2)
    return bool(
        np.abs(product - np.eye(d)).max() < SOUND * d
        and (np.diagonal(prior.covariance) > 0).all()
        and (doubts > 0).all()
        and (np.abs(prior.doubt) <= MOST_LEARNED).all()
        and (prior.share[:k] > 0).all()
    )


def _longer(array: NDArray[Any], room: int) -> NDArray[Any]:
    """Return the same rows with room for at least so many.

    Copying gigabytes would delay a decision, so a large array gets address space for half of the machine's memory.
    Memory is used only as rows are written.
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


def _filled(array: NDArray[Any], room: int) -> NDArray[Any]:
    fresh = np.zeros((room, *array.shape[1:]), dtype=array.dtype)
    fresh[: len(array)] = array
    return fresh


def _arrays(model: arrays.Model) -> dict[str, NDArray[Any]]:
    """Return the arrays of a model by their names in files."""
    found: dict[str, NDArray[Any]] = {}
    for name, value in model._asdict().items():
        if name == "friends":  # of both models
            continue
        if isinstance(value, np.ndarray):
            found[name] = value
        else:
            found |= {f"{name}_{part}": array for part, array in value._asdict().items()}
    return found


def _length(name: str, array: NDArray[Any], n_rows: int, n_items: int) -> int:
    """Return how many elements of an array a file holds."""
    return n_rows if name.startswith("users_") else n_items if name == "effects" else len(array)
