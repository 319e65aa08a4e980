"""Generated twins of the paper's advertising datasets: the same sizes, and clicks with known probabilities.

Tuenti was never public, and the files of KDD Cup and Avazu need an account. Reports say that a twin is generated.
Users are assigned to groups independently for each family of ads, so whether two users agree depends on the ad.
Visits, served ads and clicks are drawn block by block, each block from its own seed, so any part of a log can be
made without the rest. `docs/reproduce.md` has the distributions.
"""

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from coterie.arrays import Floats, Ints, JsonObject
from coterie.data.logs.logged import BLOCK, Logged, LogRecords
from coterie.data.worlds.world import check_number
from coterie.errors import ParameterError
from coterie.models.checks import check_count

# The number of records is chosen so that replay keeps about the paper's number: one in `n_candidates`.
TWINS: dict[str, JsonObject] = {
    "tuenti": {"n_users": 14_612, "n_items": 105, "n_candidates": 15, "n_records": 15_000_000},
    "kddcup-twin": {"n_users": 10_333, "n_items": 6_780, "n_records": 2_000_000},
    "avazu-twin": {"n_users": 48_723, "n_items": 5_099, "n_records": 22_000_000, "mean_ctr": 0.17},
}


@final
@dataclass(frozen=True, kw_only=True)
class Twin:
    """The generator of visits, served ads and clicks."""

    n_users: int
    n_items: int
    n_candidates: int = 20
    n_records: int
    n_families: int = 5
    groups_per_family: int = 4
    contrast: float = 2.5  # the ratio of a group's click rate to that of the next lower group
    mean_ctr: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("n_users", "n_records", "n_families", "groups_per_family"):
            check_count(name, getattr(self, name), least=1)
        check_count("n_candidates", self.n_candidates, least=2)
        check_count("seed", self.seed, least=0)
        check_number("contrast", self.contrast, lambda x: x >= 1, "a number of at least 1")
        check_number("mean_ctr", self.mean_ctr, lambda x: 0 < x <= 0.5, "a number above 0 and at most 0.5")
        if not (isinstance(self.n_items, int) and self.n_items > self.n_candidates):
            raise ParameterError(
                f"n_items is {self.n_items!r}, expected more than the {self.n_candidates} candidates of a list"
            )

    @cached_property
    def shares(self) -> Floats:
        """How often each ad is served: (n_items,), none more often than balanced lists allow."""
        rng = np.random.default_rng([self.seed, 0])
        weight = rng.permutation(np.arange(1, self.n_items + 1) ** -0.5)
        weight /= weight.sum()
        most = min(0.95 / self.n_candidates, 1.0)
        for _ in range(100):  # distribute what exceeds the limit among the others
            weight = np.minimum(weight, most)
            weight /= weight.sum()
        return np.asarray(weight, dtype=np.float64)

    @cached_property
    def groups(self) -> Ints:
        """The group of each user in each family: (n_families, n_users)."""
        rng = np.random.default_rng([self.seed, 1])
        groups = np.tile(np.arange(self.n_users) % self.groups_per_family, (self.n_families, 1))
        return np.asarray(rng.permuted(groups, axis=1), dtype=np.int64)

    @cached_property
    def rates(self) -> Floats:
        """The click rate of each group for each ad: (n_items, groups_per_family)."""
        rng = np.random.default_rng([self.seed, 2])
        ladder = float(self.contrast) ** np.arange(self.groups_per_family)
        rates = rng.permuted(np.tile(ladder, (self.n_items, 1)), axis=1)
        rates *= rng.lognormal(0.0, 0.4, size=(self.n_items, 1))
        rates *= self.mean_ctr / (self.shares @ rates.mean(axis=1))
        return np.asarray(np.minimum(rates, 0.95), dtype=np.float64)

    @cached_property
    def _visits(self) -> Floats:
        """The cumulative visit shares of the users: (n_users,), up to 1."""
        rng = np.random.default_rng([self.seed, 3])
        cumulative = np.cumsum(rng.lognormal(0.0, 1.0, size=self.n_users))
        return np.asarray(cumulative / cumulative[-1], dtype=np.float64)

    def rate(self, users: Ints, items: Ints) -> Floats:
        """Return the click probability of each pair of user and item; the arrays broadcast."""
        return np.asarray(self.rates[items, self.groups[items % self.n_families, users]], dtype=np.float64)

    def records(self, first: int, last: int) -> LogRecords:
        """Return the records from `first` up to `last`."""
        parts = [self._block(b) for b in range(first // BLOCK, -(-last // BLOCK))]
        skip = first // BLOCK * BLOCK
        whole = map(np.concatenate, zip(*parts, strict=True))
        return LogRecords(*(column[first - skip : last - skip] for column in whole))

    def _block(self, number: int) -> LogRecords:
        rng = np.random.default_rng([self.seed, 4, number])
        users = _draw(rng, self._visits)
        items = _draw(rng, np.cumsum(self.shares))
        return LogRecords(users, items, (rng.random(BLOCK) < self.rate(users, items)).astype(np.float64))


def _draw(rng: np.random.Generator, cumulative: Floats) -> Ints:
    found = np.searchsorted(cumulative, rng.random(BLOCK), side="right")
    return np.asarray(np.minimum(found, len(cumulative) - 1), dtype=np.int64)


def twin(name: str, *, draw: str = "balanced", **settings: Any) -> Logged:
    """Return the twin with that name; settings override the parameters of `Twin`."""
    if name not in TWINS:
        raise ParameterError(f"unknown twin {name!r}; choose among {', '.join(TWINS)}")
    try:
        made = Twin(**{**TWINS[name], **settings})
    except TypeError as error:
        known = ", ".join(Twin.__dataclass_fields__)
        raise ParameterError(f"twin {name!r} has no such setting ({error}); there are {known}") from error
    return Logged(
        name=name,
        described={"kind": name, "draw": draw, **asdict(made)},
        provenance="generated twin",
        items=list(range(made.n_items)),
        shares=made.shares,
        n_users=made.n_users,
        n_rounds=made.n_records,
        records=made.records,
        n_candidates=made.n_candidates,
        draw=draw,
        notes=(
            f"This is a generated twin with the sizes of {name.removesuffix('-twin')}, not the real data: "
            "what comes out says nothing about the real data.",
        ),
    )
