"""A built-in world as a dataset: a fixed number of its rounds, and the part that follows tuning."""

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, ClassVar, final

from coterie.arrays import JsonObject
from coterie.data.rounds import BlockSource, Traits
from coterie.data.worlds.world import World
from coterie.models.batches import Batch
from coterie.models.checks import check_count

N_ROUNDS = 12_500  # a fifth to tune, 10,000 to report


@final
@dataclass(frozen=True)
class Stage(Traits, BlockSource):
    """The first rounds of a world, with the attributes of a dataset."""

    name: str
    world: World
    n_rounds: int = N_ROUNDS

    provenance: ClassVar[str] = "generated world"

    def __post_init__(self) -> None:
        check_count("n_rounds", self.n_rounds, least=2)

    one_hot = property(attrgetter("world.one_hot"))  # whether items have ids only, without features
    n_features = property(attrgetter("world.n_features"))  # None if items have ids only
    n_users = property(attrgetter("world.n_users"))  # present at a time
    n_candidates = property(attrgetter("world.n_candidates"))

    @property
    def n_items(self) -> int | None:
        """How many items there are; None if items are new in every round."""
        return self.parameters().get("n_items")

    def parameters(self) -> JsonObject:
        """Return the world's parameters, which are enough to make the same rounds again."""
        return self.world.parameters()

    def blocks(self, n_rounds: int, seed: int, start: int = 0) -> Iterator[Batch]:
        """Yield the world's rounds from `start` up to `n_rounds`, in batches."""
        return self.world.blocks(n_rounds, seed, start)


@final
@dataclass(frozen=True)
class Rest(BlockSource):
    """The rounds of a world or a dataset from `first` on. All other attributes are those of the whole."""

    of: Any
    first: int

    def parameters(self) -> JsonObject:
        """Return all parameters needed to make the same rounds again."""
        return {"kind": "part", "first": self.first, "of": self.of.parameters()}

    @property
    def n_rounds(self) -> int:
        """How many rounds are left."""
        return int(self.of.n_rounds) - self.first

    def blocks(self, n_rounds: int, seed: int, start: int = 0) -> Iterator[Batch]:
        """Yield the rounds from `start` up to `n_rounds`, in batches."""
        return self.of.blocks(self.first + n_rounds, seed, self.first + start)  # type: ignore[no-any-return]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "of":  # looked up during copying, before `of` is set
            raise AttributeError(name)
        return getattr(self.of, name)
