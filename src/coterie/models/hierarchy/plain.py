"""Actions without a context: vectors, ids or both. Two models of the users, and the payoffs of each pair.

`few` is a model over few items known by ids alone, with a covariance over items. It decides until there are more than
FEW items, or features. `many` is a model over features and items' effects, and always learns. A user has the same row
everywhere.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from operator import is_not
from typing import Any, Protocol, final

import numpy as np
from safetensors.numpy import load, save

from coterie.arrays import Floats
from coterie.errors import FileError, NumberError
from coterie.models._kernels.hierarchy import few_items, loop
from coterie.models._kernels.hierarchy.arrays import FEW, K_, LEARNED, NO_ID, PHI_, TAU_, Contexts
from coterie.models._kernels.hierarchy.population import score, view
from coterie.models.batches import TOO_LARGE, Batch, Outcome
from coterie.models.files import Tensors, pack_ids, take, unpack_ids
from coterie.models.hierarchy import drift
from coterie.models.hierarchy.drift import HalfLife, half_life_of, keep_of, make_drift, present_half_life
from coterie.models.hierarchy.friends import Friends
from coterie.models.hierarchy.population import Population
from coterie.models.hierarchy.refit import add_features, keep_sums, refit_if_due
from coterie.models.hierarchy.representation import EffectPart, Exploration, Group, Scored
from coterie.models.parts import Blocks, Parts
from coterie.models.prepared import Prepared
from coterie.models.ranges import LARGEST_PAYOFF, MOST_LEARNED
from coterie.models.roster import Roster
from coterie.models.rows.chunks import Chunk, Game, Items, play_chunks
from coterie.models.rows.means import Means

PARTS = ("population", "own", "effect", "pair")  # the parts of an estimate
BLOCK = 1 << 8  # users in one part of a copy


class Kind(Protocol):
    """What actions are, and how they are read."""

    @property
    def n_features(self) -> int | None:
        """How many features they have; None without features."""

    @property
    def one_hot(self) -> bool:
        """Whether they have ids."""

    def read(self, contexts: Any) -> Any:
        """Check candidates, and return them in the format of the other calls."""

    def read_one(self, context: Any) -> Any:
        """Check one action, and return it as a list of one candidate."""

    def ids(self, contexts: Any) -> list[Hashable]:
        """Return the ids of checked candidates, None for one without; none at all if they have no ids."""

    def table(self, contexts: Any) -> Floats:
        """Return the features of checked candidates: (candidates, n_features)."""


@final
class PlainModel:
    """A `Representation` by rows of users."""

    def __init__(self, kind: Kind, half_life: HalfLife) -> None:
        self.drift = make_drift(half_life)
        keep = keep_of(self.drift)
        self.kind, self.ids = kind, kind.one_hot
        self.pairs = Means(largest=LARGEST_PAYOFF)  # the payoffs of each pair, and the items' numbers
        self.many = Population(1 + (kind.n_features or 0), ids=self.ids, keep=keep)
        self.few = Population(16 if kind.n_features is None else 1, unit=True, keep=keep)
        self.deciding = np.array([int(kind.n_features is None)])  # 1 while `few` decides
        self.roster, self.friends = Roster(), Friends()
        self._rows = Blocks(self._blocks, self._encode)
        self._view_few, self._view_many = Prepared(few_items.view), Prepared(view)
        self._learn_one = Prepared(loop.learn_one)
        self._kept: loop.Hierarchy | None = None  # what `_arrays` was last

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
        """All arrays; the same tuple as long as they are the same."""
        now, before = (
            (self.few.model, self.many.model, self.deciding, self.pairs.rows, self.ids, self.drift),
            self._kept,
        )
        if before is None or any(map(is_not, now, before)):
            before = self._kept = loop.Hierarchy(*now)
        return before

    # Decisions.

    def read(self, contexts: Any) -> tuple[Any, Any]:
        checked = self.kind.read(contexts)
        return checked, checked

    def read_one(self, context: Any) -> Any:
        return self.kind.read_one(context)

    def score(self, user: Hashable, candidates: Any, explore: float, floor: float) -> Scored:
        row = self.roster.row(user)
        parts, groups = self.view(row, self._contexts(candidates))
        found, chances = np.empty(len(parts)), np.empty(len(parts))
        score(parts, explore, floor, found, chances)
        with_items = self.ids and not self.few_decides
        shown = {name: parts[:, i] for i, name in enumerate(PARTS) if i < 2 or with_items}
        sd = np.sqrt(parts[:, 4] + parts[:, 5])
        return Scored(
            found, chances, parts[:, :4].sum(axis=1), sd, parts[:, 0], np.sqrt(parts[:, 4]), shown | {"sd": sd},
            self.n_rows + (row < 0), groups,
        )  # fmt: skip

    def contributions(self, user: Hashable, candidates: Any, k: int, most: int) -> list[EffectPart]:
        parts, _ = self.view(self.roster.row(user), self._contexts(candidates))
        found = [EffectPart(name, -1, -1, float(value)) for name, value in zip(PARTS, parts[k], strict=False)]
        return sorted(found, key=lambda part: -abs(part.value))[:most]

    def _contexts(self, candidates: Any) -> Contexts:
        """Return checked candidates in the format of the compiled loops: their features, and their ids, if any."""
        numbers, table = np.empty(0, dtype=np.int64), self.kind.table(candidates)
        if self.ids:
            ids = self.kind.ids(candidates)
            numbers = self.pairs.numbers(ids)
            if None in ids:
                numbers[[item is None for item in ids]] = NO_ID
        if not (table.flags.carray and table.dtype == np.float64):
            table = np.require(table, dtype=np.float64, requirements=["C", "W"])
        return Contexts(table, numbers)

    def view(self, row: int, contexts: Contexts) -> tuple[Floats, Floats]:
        """Return the parts of each score (see `population.view_with`) and the user's probability of each group.

        Row -1 is a user without payoffs.
        """
        which = np.arange(len(contexts.features))
        parts, model, pairs = np.empty((len(which), 6)), self.population.model, self.pairs.rows
        if self.few_decides:
            return parts, self._view_few((model, pairs), row, contexts.numbers, which, parts)
        return parts, self._view_many((model, pairs), row, contexts, which, parts)

    # Payoffs.

    def estimates(self, user: Hashable, candidates: Any) -> Floats:
        """Return the parts of each candidate's estimate, in the order of PARTS: (4, candidates)."""
        return self.view(self.roster.row(user), self._contexts(candidates))[0][:, :4].T

    def check(self, user: Hashable, one: Any) -> Contexts:
        """Return an action as `_contexts` does; raise NumberError if its estimate is too large to learn a payoff."""
        contexts = self._contexts(one)
        parts, _ = self.view(self.roster.row(user), contexts)
        if not all(abs(part) <= MOST_LEARNED for part in parts[0].tolist()):
            raise NumberError(f"a payoff of user {user!r} cannot be learned: {TOO_LARGE}")
        return contexts

    def learn(self, user: Hashable, one: Any, payoff: float, now: int) -> None:
        """Learn a payoff, and visit a few users."""
        contexts = self.check(user, one)
        self.add(user)
        row = self.roster.row(user)
        self._rows.touch(row // BLOCK)
        if self.ids and contexts.numbers[0] < 0:
            self.pairs.learnable([item for item in self.kind.ids(one) if item is not None])  # gets a number
            contexts = self._contexts(one)
        self.make_room()
        self._learn_one((self._arrays,), row, contexts, 0, payoff)
        self.refit_if_due(len(self.pairs.items))

    @property
    def learned(self) -> int:
        """How many payoffs were learned."""
        return int(self.many.model.place[LEARNED])

    def add_features(self, values: Floats) -> None:
        """Add columns of features, given by their values in the next payoff. `few` decides no more."""
        self.deciding[0] = 0
        add_features(self.many, values)

    def play(self, batch: Batch, exploration: Exploration, learned: int) -> tuple[Outcome, int] | None:
        contexts = self.kind.read(batch.items)
        names = self.kind.ids(contexts)
        if len(set(names)) < len(names):
            return None
        features = self._contexts(contexts).features
        for block in self._blocks():
            self._rows.touch(block)

        def play(chunk: Chunk, items: Items) -> None:
            nonlocal learned

            def turn(game: Game) -> None:
                self.make_room(n_items=int(items.named[0]))
                loop.play(self._arrays, game, features, *exploration)
                self.refit_if_due(int(items.named[0]))

            learned = chunk.play(items.numbers, items.named, learned, 0, turn)
            for user in chunk.joined:
                self._rows.touch(self.roster.join(user) // BLOCK)

        outcome = play_chunks(batch, Items(self.pairs, names), self.roster.row, play)
        return outcome, learned

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

    def add(self, user: Hashable) -> None:
        if user not in self.roster:
            self.make_room()
            loop.add_row(self._arrays)
            self._rows.touch(self.roster.join(user) // BLOCK)

    def drop(self, user: Hashable) -> None:
        """Forget a user; the last row moves into the place. What the population learned stays."""
        for row in (self.roster.row(user), self.n_rows - 1):
            self._rows.touch(max(row, 0) // BLOCK)
        row = self.roster.row(user)
        for other in {*self.friends.of(row), *self.friends.of(self.n_rows - 1)}:
            self._rows.touch(other // BLOCK)
        self.roster.leave(user)
        for population in self.learning:
            keep_sums(population, row, self.pairs.rows)
        for population in self.used:
            population.replace(row)
        if self.ids:
            self.pairs.replace(row)
        self.friends.replace(row, self.n_rows)

    def set_friends(self, user: Hashable, friends: Mapping[Hashable, float]) -> None:
        """Give a user these friends, with the weights of the edges, and no others. All of them become known."""
        for name in (user, *friends):
            self.add(name)
        row = self.roster.row(user)
        found = {self.roster.row(name): weight for name, weight in friends.items()}
        for other in {row, *self.friends.of(row), *found}:
            self._rows.touch(other // BLOCK)
        self.friends.set(row, found)
        self._link()

    def friends_of(self, user: Hashable) -> dict[Hashable, float]:
        """Return a user's friends and the weights of the edges."""
        return {
            self.roster.names[row]: weight for row, weight in self.friends.of(self.roster.row(user)).items()
        }

    def _link(self) -> None:
        """Tell both models of the edges."""
        self.few.friends = self.many.friends = self.friends.table

    @property
    def users(self) -> Sequence[Hashable]:
        return list(self.roster.names)

    # The population.

    @property
    def variances(self) -> dict[str, float]:
        """The prior variance of a user's constant, of the weights of features (or items), and of items' effects."""
        prior, d = self.population.model.prior, self.population.n_used
        between, found = np.diag(prior.covariance)[:d], {"user": float(prior.covariance[0, 0])}
        if d > 1:
            found["user × id" if self.few_decides else "user × feature"] = float(between[1:].mean())
        if self.ids:
            found["id"] = float(prior.noise[TAU_])
        if self.ids and not self.few_decides:
            found["user × id"] = float(prior.noise[PHI_] * prior.noise[K_])
        return found

    @property
    def present_half_life(self) -> float | None:
        return present_half_life(self.drift)

    def groups(self, most: int) -> list[Group]:
        prior, k, d = self.population.model.prior, self.population.n_groups, self.population.n_used
        share, means = prior.share[:k] / prior.share[:k].sum(), prior.means[:k, :d]
        apart = means - share @ means
        names: list[Hashable] = list(self.pairs.items) if self.few_decides else list(range(d - 1))
        members: list[list[Hashable]] = [[] for _ in range(k)]
        for row, name in enumerate(self.roster.names):
            members[self._group_of(row)].append(name)
        found = []
        for g in range(k):
            places = np.argsort(-np.abs(apart[g, 1:]), kind="stable")[:most].tolist()
            differs = [(names[place], float(apart[g, 1 + place])) for place in places]
            found.append(Group(float(share[g]), members[g], differs))
        return found

    def _group_of(self, row: int) -> int:
        """Return the group in which a user is most likely."""
        numbers = np.array([-1] if self.ids else [], dtype=np.int64)
        _, chance = self.view(row, Contexts(np.zeros((1, self.many.n_used - 1)), numbers))
        return int(np.argmax(chance))

    # Files.

    def tensors(self) -> Tensors:
        return {**self.head(), **self._of_rows(0, self.n_rows)}

    def restore(self, tensors: Tensors) -> None:
        names, deciding = unpack_ids(tensors, "users"), take(tensors, "deciding", "i", (1,))
        if deciding[0] not in (0, 1) or (deciding[0] and self.kind.n_features is not None):
            raise FileError("the model file does not say which of two models decides")
        if self.ids:
            self.pairs.rows = self.pairs.restore("pair", tensors, len(names))
            self.few.restore("few", tensors, len(names), 0)
        self.many.restore("many", tensors, len(names), len(self.pairs.items))
        self.friends = Friends.restore(tensors, len(names))
        self.drift = drift.restored(tensors, half_life_of(self.drift))
        self._link()
        self.roster, self.deciding = Roster(names), deciding.copy()
        self._rows = Blocks(self._blocks, self._encode)
        for block in self._blocks():
            self._rows.touch(block)

    def parts(self) -> dict[str, Parts]:
        return {"rows": self._rows}

    def head(self) -> Tensors:
        found = {"deciding": self.deciding.copy(), **self.many.head("many", len(self.pairs.items))}
        found |= drift.tensors(self.drift)
        return found | ({"items": pack_ids(self.pairs.items)} | self.few.head("few", 0) if self.ids else {})

    def restore_parts(self, head: Tensors, parts: Mapping[str, Iterable[bytes]]) -> None:
        self.restore({**head, **self._joined([load(body) for body in parts.get("rows", ())])})
        self._rows = Blocks(self._blocks, self._encode)

    def _blocks(self) -> Iterable[int]:
        return range(-(-self.n_rows // BLOCK))

    def _encode(self, block: int) -> bytes:
        return bytes(save(self._of_rows(block * BLOCK, min((block + 1) * BLOCK, self.n_rows))))

    def _of_rows(self, first: int, last: int) -> Tensors:
        """Return what is known of the users in rows [first, last)."""
        found = {"users": pack_ids(self.roster.names[first:last]), **self.many.rows("many", first, last)}
        if self.ids:
            found |= self.few.rows("few", first, last) | self.pairs.tensors("pair", np.arange(first, last))
            del found["items"]
        return found | self.friends.tensors(first, last)

    def _joined(self, blocks: list[Tensors]) -> Tensors:
        """Return what `_of_rows` returned of several blocks, as it returns all rows at once."""
        if not blocks:
            return self._of_rows(0, 0)
        expected = set(self._of_rows(0, 0))
        blocks = [Friends().tensors(0, 0) | block for block in blocks]  # older files have no friends
        if any(set(block) != expected for block in blocks):
            raise FileError("a part of the model's users is damaged: its arrays are others than expected")
        users = [unpack_ids(block, "users") for block in blocks]
        for place, block in enumerate(blocks):
            for rows in {"pair_row", "friend_row"} & block.keys():
                block[rows] = block[rows] + sum(map(len, users[:place]))
        found = {
            name: np.concatenate([block[name] for block in blocks]) for name in expected if name != "users"
        }
        return {**found, "users": pack_ids(name for names in users for name in names)}
