"""All that `Hierarchical` learns: two models of the users, and the payoffs of each pair of user and item.

`few` is a model over few items known by ids alone, with a covariance over items. It decides until there are more than
FEW items. `many` is a model over features and items' effects, and always learns. A user has the same row everywhere.
"""

from typing import Any, NamedTuple, final

import numpy as np
from numpy.random import Generator

from coterie.arrays import Floats
from coterie.errors import FileError
from coterie.models._kernels.hierarchy import few_items, loop
from coterie.models._kernels.hierarchy.arrays import FEW, Contexts
from coterie.models._kernels.hierarchy.population import score, view
from coterie.models.candidates import Candidates
from coterie.models.context_kind import ContextKind
from coterie.models.files import Tensors, take
from coterie.models.hierarchy.population import Population
from coterie.models.hierarchy.refit import keep_sums, refit_if_due
from coterie.models.rows.chunks import Chunk, Items
from coterie.models.rows.means import Means

__all__ = ["Exploration", "HierarchicalModel"]


class Exploration(NamedTuple):
    """How choices are drawn: see `Hierarchical`."""

    explore: float
    floor: float
    rng: Generator


@final
class HierarchicalModel:
    """The models of users by row. `keep` is the factor of a user's old payoffs at each new one."""

    def __init__(self, kind: ContextKind, keep: float) -> None:
        n_features, one_hot = self.kind = kind
        self.ids, self.ids_alone, self.n_features = one_hot, n_features is None, n_features or 0
        self.pairs = Means()  # the payoffs of each pair, and the items' numbers
        self.many = Population(1 + self.n_features, ids=one_hot, keep=keep)
        self.few = Population(16 if self.ids_alone else 1, unit=True, keep=keep)
        self.deciding = np.array([int(self.ids_alone)])  # 1 while `few` decides

    @property
    def few_decides(self) -> bool:
        """Whether `few` decides, not `many`."""
        return bool(self.deciding[0])

    @property
    def population(self) -> Population:
        """The model that decides."""
        return self.few if self.few_decides else self.many

    @property
    def learning(self) -> list[Population]:
        """The models that learn, in the order in which they visit users."""
        return [self.few, self.many] if self.few_decides else [self.many]

    @property
    def used(self) -> list[Population]:
        """The models that have rows of users."""
        return [self.few, self.many] if self.ids else [self.many]

    @property
    def n_rows(self) -> int:
        """How many users have a row."""
        return self.many.n_rows

    @property
    def _arrays(self) -> loop.Hierarchy:
        return loop.Hierarchy(self.few.model, self.many.model, self.deciding, self.pairs.rows, self.ids)

    # Decisions.

    def contexts(self, contexts: Any) -> Contexts:
        """Return checked contexts in the format of the compiled loops: their features, and their ids, if any."""
        numbers = self.pairs.numbers(self.kind.ids(contexts)) if self.ids else np.empty(0, dtype=np.int64)
        features = contexts.features if isinstance(contexts, Candidates) else contexts
        table = np.empty((len(numbers), 0)) if self.ids_alone else features
        return Contexts(np.require(table, dtype=np.float64, requirements=["C", "W"]), numbers)

    def learnable(self, one: Any) -> Contexts:
        """The same for one context that will be learned: a new item gets a number."""
        if self.ids:
            self.pairs.learnable(self.kind.ids(one))
        return self.contexts(one)

    def view(self, row: int, contexts: Contexts) -> tuple[Floats, Floats]:
        """Return the parts of each score (see `population.view_with`) and the user's probability of each group.

        Row -1 is a user without payoffs.
        """
        which = np.arange(len(contexts.features))
        parts, model, pairs = np.empty((len(which), 6)), self.population.model, self.pairs.rows
        if self.few_decides:
            return parts, few_items.view(model, pairs, row, contexts.numbers, which, parts)
        return parts, view(model, pairs, row, contexts, which, parts)

    def group_of(self, row: int) -> int:
        """Return the group in which a user is most likely."""
        numbers = np.array([-1] if self.ids else [], dtype=np.int64)
        _, chance = self.view(row, Contexts(np.zeros((1, self.n_features)), numbers))
        return int(np.argmax(chance))

    def scores(self, parts: Floats, explore: float, floor: float) -> tuple[Floats, Floats]:
        """Return each candidate's score, and its probability of being chosen."""
        found, chances = np.empty(len(parts)), np.empty(len(parts))
        score(parts, explore, floor, found, chances)
        return found, chances

    # Payoffs.

    def learn(self, row: int, contexts: Contexts, payoff: float) -> None:
        """Learn a known user's payoff for the first of `contexts`, and visit a few users."""
        self.make_room()
        loop.learn_one(self._arrays, row, contexts, 0, payoff)
        self.refit_if_due(len(self.pairs.items))

    def play(
        self, chunk: Chunk, features: Floats, items: Items, learned: int, exploration: Exploration
    ) -> int:
        """Play rounds in the compiled loop; return `learned` plus the number of payoffs learned."""
        game = chunk.game(items, learned)
        while not chunk.is_over(game):
            self.make_room(n_items=int(items.named[0]))
            loop.play(self._arrays, game, features, *exploration)
            self.refit_if_due(int(items.named[0]))
        return int(game.so_far[1])

    def refit_if_due(self, n_items: int) -> None:
        """Compute new parameters of each model whose pass over the users is complete."""
        for population in reversed(self.learning):
            refit_if_due(population, self.pairs.rows, n_items)

    # Rows.

    def make_room(self, n_items: int | None = None) -> None:
        """Make room for one more user, item and pair; `n_items` replaces the number of items."""
        rows = self.n_rows + 1
        n_items = len(self.pairs.items) if n_items is None else n_items
        self.many.fit(rows, n_items + 1 if self.ids else 0)
        if self.ids:
            self.few.fit(rows)
            if self.few_decides:
                self.few.widen(1 + min(n_items + 1, FEW))
            self.pairs.fit(rows, self.pairs.entries + 1)

    def add_row(self) -> None:
        """Add a row for a new user."""
        self.make_room()
        loop.add_row(self._arrays)

    def drop_row(self, row: int) -> None:
        """Forget a row, and move the last one into its place. What the population learned from it stays."""
        for population in self.learning:
            keep_sums(population, row, self.pairs.rows)
        for population in self.used:
            population.replace(row)
        if self.ids:
            self.pairs.replace(row)

    # Files.

    def tensors(self) -> Tensors:
        """Return everything as arrays."""
        found = {"deciding": self.deciding.copy(), **self.many.tensors("many", len(self.pairs.items))}
        if self.ids:
            found |= self.pairs.tensors("pair", np.arange(self.n_rows)) | self.few.tensors("few", 0)
        return found

    def restore(self, tensors: Tensors, n_rows: int) -> None:
        """Restore what `tensors` returned, of so many users, if it is consistent."""
        deciding = take(tensors, "deciding", "i", (1,))
        if deciding[0] not in (0, 1) or (deciding[0] and not self.ids_alone):
            raise FileError("the model file does not say which of two models decides")
        if self.ids:
            self.pairs.rows = self.pairs.restore("pair", tensors, n_rows)
            self.few.restore("few", tensors, n_rows, 0)
        self.many.restore("many", tensors, n_rows, len(self.pairs.items))
        self.deciding = deciding.copy()
