"""What all synthetic worlds share: they generate rounds, and know the expected payoffs."""

import math
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar, NoReturn

import numpy as np

from coterie.arrays import Floats, JsonObject
from coterie.data.rounds import BlockSource, Round, Traits, batches_of
from coterie.data.worlds.population import POPULARITIES, WorldUsers
from coterie.errors import ContextError, ParameterError
from coterie.models.actions import ActionLike, Actions
from coterie.models.batches import Batch
from coterie.models.checks import check_count


@dataclass(frozen=True, kw_only=True)
class World(Traits, BlockSource):
    """Users, items in families, and payoffs that keep the paper's γ-gap assumption (Section 2).

    paper        here
    u_i          truth(user)
    u_i·x        expected(user, contexts)
    N_i(x)       neighbours(user, context)
    m(x)         n_clusters(context)
    γ            gap

    For every context x of a world, two users of one cluster have exactly the same u_i·x, and users of
    different clusters differ by at least `gap`. Users are assigned to clusters independently for each family
    of items, so agreement on one family says nothing about another. With drift, a world's methods describe a
    user at the start; each round holds the values at that time.
    """

    n_users: int = 200
    clusters_per_family: int = 4
    n_candidates: int = 10
    popularity: str = "even"
    turnover: float = 0.0
    seed: int = 0

    kind: ClassVar[str]  # its name in `parameters`
    one_hot: ClassVar[bool] = False  # whether contexts are item ids

    @property
    @abstractmethod
    def n_features(self) -> int | None:
        """The length of a context; None if contexts are item ids."""

    def parameters(self) -> JsonObject:
        """Return the parameters from which `make_world` makes this world again, ready for JSON."""
        # `drift` is newer than the saved runs: without drift it is left out, so that they still match.
        return {"kind": self.kind, **{k: v for k, v in asdict(self).items() if k != "drift" or v}}

    @cached_property
    def population(self) -> WorldUsers:
        """The users: their clusters, and the order of their visits."""
        names = [field.name for field in fields(WorldUsers) if hasattr(self, field.name)]
        return WorldUsers(**{name: getattr(self, name) for name in names})

    @abstractmethod
    def truth(self, user: Hashable) -> Floats:
        """Return u_i: (n_features,), or the expected payoff of each item: (n_items,)."""

    @abstractmethod
    def expected(self, user: Hashable, contexts: Actions) -> Floats:
        """Return u_i·x for each candidate: (candidates,). Equal to the last bit within a cluster."""

    @abstractmethod
    def family(self, context: Actions) -> int:
        """Return which family of items the context belongs to."""

    @abstractmethod
    def candidates(self, rng: np.random.Generator) -> Actions:
        """Draw the candidates of one round, in random order."""

    @abstractmethod
    def payoffs(self, expected: Floats, rng: np.random.Generator) -> Floats:
        """Draw payoffs in [-1, 1] whose means are exactly `expected`."""

    def rounds(self, n_rounds: int, seed: int = 0) -> Iterator[Round]:
        """Return `n_rounds` rounds: the same for the same seed, and the first of them do not depend on `n_rounds`."""
        check_count("n_rounds", n_rounds, least=0)
        check_count("seed", seed, least=0)
        return islice(self._endless(np.random.default_rng([self.population.seed, 2, seed])), n_rounds)

    def blocks(self, n_rounds: int, seed: int, start: int = 0) -> Iterator[Batch]:
        """Yield the rounds from `start` up to `n_rounds`, in batches between which users join and leave."""
        return batches_of(islice(self.rounds(n_rounds, seed), start, None))

    def _endless(self, rng: np.random.Generator) -> Iterator[Round]:
        for user, joined, left, taste in self.population.visits(rng):
            contexts = self.candidates(rng)
            expected = self.expected(taste, contexts)
            yield Round(user, contexts, self.payoffs(expected, rng), expected, joined, left)

    def users(self) -> list[int]:
        """Return the users present at the start, until the first round with `joined` or `left`."""
        return list(range(self.population.n_users))

    def neighbours(
        self, user: Hashable, context: ActionLike, users: Iterable[Hashable] | None = None
    ) -> list[Hashable]:
        """Return those of `users` (default: all present at the start) with the same u_i·x as `user`."""
        family = self.family(context)
        own = self.population.clusters(user)[family]
        return [j for j in self._or_start(users) if self.population.clusters(j)[family] == own]

    def n_clusters(self, context: Actions, users: Iterable[Hashable] | None = None) -> int:
        """Return m(x): how many values u_i·x takes over `users` (default: all present at the start)."""
        family = self.family(context)
        return len({int(self.population.clusters(j)[family]) for j in self._or_start(users)})

    def _rows(self, contexts: Actions) -> Floats:
        """Return contexts as an array (candidates, n_features)."""
        rows = np.asarray(contexts, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != self.n_features:
            raise ContextError(
                f"contexts have the shape {rows.shape}, this world's have (candidates, {self.n_features})"
            )
        return rows

    def _or_start(self, users: Iterable[Hashable] | None) -> Iterable[Hashable]:
        return self.users() if users is None else users

    def check(self, *counts: str) -> None:
        """Raise ParameterError unless the parameters that all worlds share, and other `counts`, are valid."""
        for name in ("n_users", "clusters_per_family", "n_candidates", *counts):
            check_count(name, getattr(self, name), least=1)
        check_count("seed", self.seed, least=0)
        if self.popularity not in POPULARITIES:
            raise ParameterError(
                f"popularity is {self.popularity!r}, expected one of: {', '.join(POPULARITIES)}"
            )
        expectation = (
            "a number from 0 to 1000: the share of users replaced in 1,000 rounds (1.0: as many as there are)"
        )
        check_number("turnover", self.turnover, lambda turnover: 0 <= turnover <= 1000, expectation)


def check_number(name: str, value: Any, fits: Callable[[float], bool], expectation: str) -> None:
    """Raise ParameterError unless `value` is a number that fits."""
    number = isinstance(value, float | int | np.floating | np.integer) and not isinstance(value, bool)
    if not number or not fits(value):
        raise ParameterError(f"{name} is {value!r}, expected {expectation}")


@dataclass(frozen=True, kw_only=True)
class FamilyWorld(World):
    """A world of several families of items, with a gap between clusters, whose users may drift."""

    clusters_per_family: int = 2
    n_families: int
    gap: float
    noise: Any
    drift: float = 0.0

    def check(self, *counts: str) -> None:
        """Raise ParameterError unless the parameters that these worlds share are valid."""
        super().check("n_families", *counts)
        if self.clusters_per_family > self.n_users:
            raise ParameterError(
                f"clusters_per_family is {self.clusters_per_family} and n_users is {self.n_users}: some "
                f"clusters would be empty; ask for at most {self.n_users}, or for more users"
            )
        check_number("gap", self.gap, lambda gap: 0 < gap <= 2, "a number above 0 and at most 2")
        expectation = "a number from 0 to 1000: the share of users whose tastes change in 1,000 rounds"
        check_number("drift", self.drift, lambda drift: 0 <= drift <= 1000, expectation)

    def check_noise(self, also: str = "") -> None:
        """Raise ParameterError unless payoffs with this noise can stay in [-1, 1]."""
        expectation = f"a number from 0 to below 1{also}, so that payoffs stay in [-1, 1]"
        check_number("noise", self.noise, lambda noise: 0 <= noise < 1, expectation)

    def refuse_gap(self, largest: float) -> NoReturn:
        """Raise the ParameterError for a gap that is too large."""
        raise ParameterError(
            f"gap is {self.gap}, expected at most {math.floor(largest * 1e6) / 1e6} for "
            f"{self.clusters_per_family} clusters in {self.n_families} families with noise {self.noise!r}; "
            "ask for a smaller gap, fewer clusters or less noise"
        )
