"""Hierarchical: every user is a draw from a population whose prior is learned from everybody's payoffs.

Users' weights w come from one or more groups with a common covariance. Means, covariance, groups, the spread of
items' own effects and the noise are all fitted to the payoffs by likelihood, a little with each payoff; there is
nothing to tune. A user without payoffs is judged as the population, one with many by the own payoffs alone, and
in between each direction of w counts for as much as the data say. `docs/hierarchical.md` derives it all.

    payoff = x·w_u + e_i + g_ui + noise       x: a constant 1, then the features
    w_u ~ Σ_k share_k N(mean_k, Σ),  e_i ~ N(0, τ²),  g_ui ~ N(0, φκ),  noise ~ N(0, (1−φ)κ)

With ids alone and up to 64 items, w has one entry per item and Σ is over items: it finds families of items.

With `half_life`, a payoff has the weight λ^age in all that is known of its user, where age counts the user's later
payoffs and λ = 2^(−1/half_life). What the population is comes from users as they are known, so it follows.

With `engine`, what is known of each user is fetched for each decision (`models/hierarchy/fetched.py`).
"""

import copy
from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, Protocol, final

import numpy as np
from numpy.typing import NDArray

from coterie.errors import CoterieError, FileError, ParameterError
from coterie.models import Means
from coterie.models.candidates import Candidates, read_both, read_one, read_table
from coterie.models.checks import check_count, check_flag, check_number, check_user, read_items, read_payoff
from coterie.models.files import Tensors, pack_ids, take, unpack_ids
from coterie.models.hierarchy.fetched import ROWS as DESK
from coterie.models.hierarchy.fetched import Arrays, Desk, Part, People
from coterie.models.hierarchy.population import Population
from coterie.models.roster import Roster
from coterie.models.rows.loops import Chunk, Items
from coterie.models.rows.ridge_rows import kernels
from coterie.policies.base.batch import Batch, Outcome, read_batch, run_one_by_one
from coterie.policies.base.compiled import CHUNK
from coterie.policies.base.decision import Decision
from coterie.policies.base.exploration import check_half_life, keep_of
from coterie.policies.base.policy import Policy
from coterie.policies.random import Seed, make_rng

Floats = NDArray[np.float64]
PARTS = ("population", "own", "effect", "pair")  # what a score is made of, before exploration


class Group(NamedTuple):
    """A group of users, as `Hierarchical.groups` returns it."""

    share: float  # of the population
    users: list[Hashable]  # those who are more likely here than in any other group
    differs: list[tuple[Hashable, float]]  # features (by position) or items, and how far from the mean of all


class Engine(Protocol):
    """Where what is known of users is kept."""

    def users(self) -> People:
        """Return room for it."""


@final
class Hierarchical(Policy):
    """Learns the population's prior with each user's weights, so that every user starts with what all know.

    Raises ParameterError if neither kind of context is named, or a number is out of range.

    Parameters
    ----------
    n_features
        How many features an item has: contexts are then an array (candidates, n_features), of any scale.
    one_hot
        Items have ids: contexts are a sequence of ids. With `n_features` as well they are
        `Candidates(ids, features)`, and `learn` takes one of them.
    explore
        How widely to search for what is not known. 1 suits all data that we tried; 0 is greedy.
    half_life
        After how many further payoffs of the same user one counts half; None if all count alike for good. For tastes
        that change.
    seed
        Starts the stream of posterior draws: an integer, or a numpy.random.Generator.
    engine
        Keeps what is known of users elsewhere than in this process (see `coterie.engines`); every choice stays the
        same.

    Examples
    --------
    >>> policy = Hierarchical(one_hot=True)
    >>> policy.learn_many(["ann", "bob", "carl"] * 2, ["jazz"] * 3 + ["news"] * 3, [1, 1, 1, 0, 0, 0])
    6
    >>> policy.choose("dora", ["news", "jazz"])
    1
    """

    name = "hierarchical"
    reference = "linear mixed effects with a learned prior (empirical Bayes); docs/hierarchical.md"
    takes_both = True
    not_saved = ("engine",)
    finds_neighbours = True
    rng: np.random.Generator

    def __init__(
        self,
        *,
        n_features: int | None = None,
        one_hot: bool = False,
        explore: float = 1.0,
        half_life: float | None = None,
        seed: Seed = 0,
        engine: Engine | None = None,
    ) -> None:
        self.n_features = None if n_features is None else check_count("n_features", n_features)
        self.one_hot = check_flag("one_hot", one_hot)
        if n_features is None and not one_hot:
            raise ParameterError(
                "n_features is None and one_hot is False, expected at least one kind of context: n_features=25 "
                "for feature vectors, one_hot=True for item ids, both for Candidates(ids, features)"
            )
        self.explore = check_number("explore", explore)
        self.half_life = check_half_life(half_life)
        self.seed = seed
        self.rng = make_rng(seed)
        self._roster = Roster()
        self._pairs = Means()  # what each user paid for each item, and the items' numbers
        keep = keep_of(self.half_life)
        self._many = Population(1 + (n_features or 0), ids=one_hot, keep=keep)
        self._few = Population(16 if self._ids_alone else 1, unit=True, keep=keep)
        self._deciding = np.array([int(self._ids_alone)])  # 1 while `_few` decides
        self.engine = engine
        self.models: Any = None  # who is kept elsewhere
        self._desk: Desk | None = None
        if engine is not None:
            self.models = engine.users()
            self._desk = Desk(self.models, self._rows)
            self._pairs.hold({}, DESK)
        self.waiting: deque[tuple[Hashable, Any, float]] = (
            deque()
        )  # payoffs, while some users cannot be asked

    @property
    def draws(self) -> bool:
        """Whether `decide` draws: it does where items have features."""
        return not self._ids_alone

    @property
    def _loops(self) -> Any:
        return kernels("hierarchy.loop")

    @property
    def _ids_alone(self) -> bool:
        return self.n_features is None

    @property
    def _explore(self) -> float:
        return self.explore * (self._loops.EXPLORE_IDS if self._ids_alone else 1.0)

    @property
    def _model(self) -> Population:
        """The model that decides."""
        return self._few if self._deciding[0] else self._many

    @property
    def _learning(self) -> list[Population]:
        """The models that learn, in the order in which they visit users: `_few` as long as it decides."""
        return [self._few, self._many] if self._deciding[0] else [self._many]

    def decide(self, user: Hashable, contexts: Any) -> Decision:
        """Score each candidate by its estimate, a bonus for what is not known, and a posterior draw."""
        check_user(user)
        contexts = self._read(contexts)
        self._catch_up()
        row = self._find(user)
        parts, chance = self._view(row, *self._arrays(contexts))
        score = np.empty(len(parts))
        self._many.code.score(parts, self._explore, score)
        estimate = parts[:, :4].sum(axis=1)
        members = np.full(len(parts), self._many.n_rows + (row < 0), dtype=np.int64)
        width = self._explore * self._many.code.BONUS * parts[:, 4]
        shown = {name: parts[:, i] for i, name in enumerate(PARTS) if i < 2 or self._shows_items()}
        return Decision(
            user, contexts, estimate, width, members, parts[:, 0], np.zeros(len(parts)), score,
            self.models.missing(user) if self._desk and row < 0 else None, parts=shown | {"sd": parts[:, 4]},
            groups=chance,
        )  # fmt: skip

    def decide_many(self, users: Sequence[Hashable], contexts: Sequence[Any]) -> list[Decision]:
        """Decide for many users, after what is known of them was brought at once."""
        self.prepare(users)
        return super().decide_many(users, contexts)

    def prepare(self, users: Sequence[Hashable]) -> None:
        """Bring what is known of users, where it is kept elsewhere: one message to each shard for all of them."""
        for user in users:
            check_user(user)
        if self._desk is not None:
            self._desk.fetch(users)

    def _find(self, user: Hashable) -> int:
        """Return a user's row, -1 for a stranger."""
        if self._desk is None:
            return self._roster.row(user)
        return -1 if self._desk.bring(user) is None else 0

    def _shows_items(self) -> bool:
        return self.one_hot and not self._deciding[0]

    def _view(self, row: int, table: Floats, numbers: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Return the parts of each candidate's score, and the user's probability of each group."""
        population = self._model
        parts, chance, which = np.empty((len(table), 6)), np.empty(population.n_groups), np.arange(len(table))
        model, pairs = population.model, self._pairs.rows
        if self._deciding[0]:
            kernels("hierarchy.families").look(model, pairs, row, numbers, which, parts, chance)
            return parts, chance
        noise = np.zeros(population.n_used)
        if self.draws:
            noise[:] = [self.rng.standard_normal() for _ in noise]
        population.code.view(model, pairs, row, table, numbers, which, noise, parts, chance)
        return parts, chance

    def learn(self, user: Hashable, context: Any, payoff: float) -> int:
        """Update the user, the item and the population; return 1.

        While an engine that may answer in part has lost some of the users, the payoff waits, and 0 is returned.
        """
        check_user(user)
        one = self._read_one(context)
        payoff = read_payoff(payoff)
        if self._desk is not None:
            return self._learn_elsewhere(user, one, payoff)
        self.add(user)
        table, numbers = self._learnable(one)
        self._make_room()
        self._loops.learn_one(
            self._few.model, self._many.model, self._deciding, self._pairs.rows, self._roster.row(user), table,
            numbers, 0, payoff, self.one_hot,
        )  # fmt: skip
        self._settle(len(self._pairs.items))
        self.learned += 1
        return 1

    def _learn_elsewhere(self, user: Hashable, one: Any, payoff: float) -> int:
        """Let the payoff take its turn after those that wait; return whether it was learned."""
        self.waiting.append((user, copy.deepcopy(one), payoff))
        try:
            self._catch_up()
        except CoterieError:
            self.waiting.pop()
            raise
        return int(not self.waiting)

    def _catch_up(self) -> None:
        """Learn what had to wait, in the order it came, as far as everybody can be asked."""
        while self.waiting and self._learn_at_desk(*self.waiting[0]):
            self.waiting.popleft()

    def _learn_at_desk(self, user: Hashable, one: Any, payoff: float) -> bool:
        """Learn a payoff of a user who is kept elsewhere; return False if some users cannot be asked now."""
        desk: Any = self._desk
        part = desk.find(user)
        if (part is None and self.models.missing(user)) or not self.models.is_ready():
            return False
        part = part or desk.next_part()
        table, numbers = self._learnable(one)
        self._rows.lay(0, part.facts)
        self._make_room()
        rest = table, numbers, 0, payoff, self.one_hot

        def step() -> None:
            few, many = self._few.model, self._many.model
            self._loops.learn_alone(few, many, self._deciding, self._pairs.rows, 0, *rest)

        desk.put(user, desk.learn(part, step))
        for population in self._learning:
            desk.pay_visits(population)
        self._settle(len(self._pairs.items))
        self.learned += 1
        return True

    def settle(self) -> None:
        """Wait until everybody can be asked, and learn what had to wait."""
        while self.waiting:
            self.models.settle()
            self._catch_up()

    @property
    def runs_compiled(self) -> bool:
        """Whether `run` is one compiled loop: if users are in this process."""
        return self._desk is None

    def _learn_all(self, batch: Batch) -> int:
        with self._held(batch.users):
            return super()._learn_all(batch)

    def _held(self, users: Any) -> Any:
        """Return a block in which what these users learn is sent together."""
        if self._desk is None:
            return nullcontext()
        return self._desk.held(users.tolist() if isinstance(users, np.ndarray) else users)

    def run(self, batch: Batch) -> Outcome:
        """Play many rounds in a compiled loop."""
        if self._desk is not None:
            with self._held(batch.users):
                return run_one_by_one(self, batch)
        candidates, payoffs, served = read_batch(batch)
        contexts = self._read(batch.items)
        names = self._names(contexts)
        if not len(candidates) or len(set(names)) < len(names):
            return run_one_by_one(self, batch)
        users = batch.users.tolist() if isinstance(batch.users, np.ndarray) else batch.users
        table, _ = self._arrays(contexts)
        items = Items(self._pairs, names)
        parts = []
        for start in range(0, len(users), CHUNK):
            part = slice(start, start + CHUNK)
            piece = Batch(users[part], candidates[part], contexts, payoffs[part], served[part])
            chunk = Chunk(piece, self._roster.row)
            self._play(chunk, table, items)
            items.settle()
            done = chunk.rounds
            parts.append(Outcome(done.choice, done.kept, done.members, done.updated))
        return Outcome(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def _play(self, chunk: Chunk, table: Floats, items: Items) -> None:
        so_far = np.array([0, self.learned])
        while so_far[0] < len(chunk.rounds.who):
            self._make_room(int(items.named[0]))
            self._loops.play(
                self._few.model, self._many.model, self._deciding, self._pairs.rows, table, items.numbers,
                items.named, chunk.rounds, chunk.people, so_far, self._explore, self.draws, self.one_hot,
                self.rng,
            )  # fmt: skip
            self._settle(int(items.named[0]))
        self.learned = int(so_far[1])
        for user in chunk.joined:
            self._roster.join(user)

    def _settle(self, n_items: int) -> None:
        """Learn from a pass over the users, if one has just ended."""
        self._many.settle(self._pairs.rows, n_items)
        if self._deciding[0]:
            self._few.settle(self._pairs.rows, n_items)

    def _make_room(self, n_items: int | None = None) -> None:
        """Make room for one more user, item and pair."""
        rows = 0 if self._desk is not None else self._many.n_rows + 1
        n_items = len(self._pairs.items) if n_items is None else n_items
        self._many.fit(rows, n_items + 1 if self.one_hot else 0)
        if self.one_hot:
            self._few.fit(rows)
            if self._deciding[0]:
                self._few.widen(1 + min(n_items + 1, self._loops.FEW))
            self._pairs.fit(rows, self._pairs.entries + 1)

    def add(self, user: Hashable) -> None:
        """Register a user."""
        check_user(user)
        if self._desk is not None:
            self.settle()
            if self._desk.surely(user) is None:
                self._desk.put(user, self._desk.next_part())
        elif user not in self._roster:
            self._make_room()
            self._loops.add_row(self._few.model, self._many.model, self._pairs.rows, self.one_hot)
            self._roster.join(user)

    def drop(self, user: Hashable) -> None:
        """Forget a user. What the population learned from the user's payoffs stays."""
        check_user(user)
        if self._desk is not None:
            self.settle()
            self._desk.leave(user, self._learning)
            return
        row = self._roster.leave(user)
        for population in self._learning:
            population.keep_of(row, self._pairs.rows)
        self._many.replace(row)
        if self.one_hot:
            self._few.replace(row)
            self._pairs.replace(row)

    @property
    def users(self) -> Sequence[Hashable]:
        """The known users."""
        return list(self._roster.names if self._desk is None else self.models.users)

    def _each(self) -> Iterator[tuple[int, Hashable]]:
        """Yield all users and the row where each can be looked at until the next."""
        if self._desk is None:
            yield from enumerate(self._roster.names)
        else:
            for user in self._desk.each():
                yield 0, user

    def neighbours(self, user: Hashable, context: Any) -> list[Hashable]:
        """Return the users whose payoff for `context` cannot be told from this user's, the user among them.

        Two users are told apart if their estimates differ by more than the sum of their standard deviations.
        """
        check_user(user)
        one = self._arrays(self._read_one(context))
        before = self.rng.bit_generator.state

        def seen(row: int) -> tuple[float, float]:
            parts, _ = self._view(row, *one)
            return float(parts[0, :4].sum()), float(parts[0, 4])

        own = self._find(user)
        estimate, spread = seen(own)
        near = []
        for row, name in self._each():
            theirs, doubt = seen(row)
            if name == user or abs(theirs - estimate) <= spread + doubt:
                near.append(name)
        self.rng.bit_generator.state = before
        return near if own >= 0 else [user, *near]

    def groups(self, most: int = 5) -> list[Group]:
        """Return the groups that were found, in the order of `Decision.groups`.

        Each tells its share, who is in it, and the `most` features (by position) or items on which its mean
        differs most from the mean of all.
        """
        prior, k, d = self._model.model.prior, self._model.n_groups, self._model.n_used
        share, means = prior.share[:k] / prior.share[:k].sum(), prior.means[:k, :d]
        apart = means - share @ means
        names: list[Hashable] = list(self._pairs.items) if self._deciding[0] else list(range(d - 1))
        people: list[list[Hashable]] = [[] for _ in range(k)]
        before = self.rng.bit_generator.state
        blank = (np.zeros((1, self.n_features or 0)), np.array([-1] if self.one_hot else [], dtype=np.int64))
        for row, name in self._each():
            people[int(np.argmax(self._view(row, *blank)[1]))].append(name)
        self.rng.bit_generator.state = before
        found = []
        for g in range(k):
            places = np.argsort(-np.abs(apart[g, 1:]), kind="stable")[:most].tolist()
            differs = [(names[place], float(apart[g, 1 + place])) for place in places]
            found.append(Group(float(share[g]), people[g], differs))
        return found

    def tensors(self) -> Tensors:
        """Return all that was learned, as arrays."""
        self.settle()
        if self._desk is not None:
            return self._bring_home(self._desk).tensors()
        n_items = len(self._pairs.items)
        found = {
            "users": pack_ids(self._roster.names),
            "deciding": self._deciding.copy(),
            **self._many.tensors("many", n_items),
        }
        if self.one_hot:
            found |= self._pairs.tensors("pair", np.arange(len(self._roster)))
            found |= self._few.tensors("few", 0)
        return found

    def restore(self, tensors: Tensors) -> None:
        """Take over what `tensors` returned."""
        if self._desk is not None:
            whole = self._alone()
            whole.restore(tensors)
            self._send_out(whole, self._desk)
            return
        names = unpack_ids(tensors, "users")
        deciding = take(tensors, "deciding", "i", (1,))
        if deciding[0] not in (0, 1) or (deciding[0] and not self._ids_alone):
            raise FileError("the model file does not say which of two models decides")
        if self.one_hot:
            self._pairs.rows = self._pairs.restore("pair", tensors, len(names))
            self._few.restore("few", tensors, len(names), 0)
        self._many.restore("many", tensors, len(names), len(self._pairs.items))
        self._roster, self._deciding = Roster(names), deciding.copy()

    @property
    def _rows(self) -> Arrays:
        return Arrays(self._few, self._many, self._pairs, self.one_hot)

    def _become(self, other: "Hierarchical", rows: int) -> None:
        """Take over all that another policy learned but its users, with room for so many."""
        self._few.become(other._few, rows)
        self._many.become(other._many, rows)
        self._pairs.hold(other._pairs.items, rows)
        self._deciding[:] = other._deciding

    def _alone(self) -> "Hierarchical":
        """Return a policy with the same settings that keeps its users itself."""
        return Hierarchical(**{**self.parameters, "engine": None})

    def _bring_home(self, desk: Desk) -> "Hierarchical":
        """Return the same policy with all users in this process."""
        whole = self._alone()
        whole._become(self, self._many.n_rows)
        for name, part in desk.parts():
            whole._rows.lay(part.row, part.facts)
            whole._roster.join(name)
        return whole

    def _send_out(self, whole: "Hierarchical", desk: Desk) -> None:
        """Take over what a policy with all users in this process has learned."""
        names = enumerate(whole._roster.names)
        desk.people.reset([(name, Part(row, whole._rows.lift(row))) for row, name in names])
        desk.begin()
        self._become(whole, DESK)
        self.waiting.clear()

    def _read(self, contexts: Any) -> Any:
        """Return candidates as a decision shows them, checked."""
        if self.n_features is None:
            return read_items(contexts)
        return read_both(contexts, self.n_features) if self.one_hot else read_table(contexts, self.n_features)

    def _read_one(self, context: Any) -> Any:
        """Return one context as a list of one, checked."""
        if self.n_features is not None and self.one_hot:
            return read_one(context, self.n_features)
        return self._read([context])

    def _name(self, context: Any) -> Hashable:
        return context.id if self.n_features is not None else context  # type: ignore[no-any-return]

    def _names(self, contexts: Any) -> list[Hashable]:
        if not self.one_hot:
            return []
        return contexts.ids if isinstance(contexts, Candidates) else contexts

    def _learnable(self, one: Any) -> tuple[Floats, NDArray[np.int64]]:
        """Return what `_arrays` does for one context, after its item got a number."""
        if self.one_hot:
            self._pairs.learnable(self._names(one))
        return self._arrays(one)

    def _arrays(self, contexts: Any) -> tuple[Floats, NDArray[np.int64]]:
        """Return checked contexts as the compiled code takes them: features and items' numbers."""
        names = self._names(contexts)
        numbers = self._pairs.numbers(names) if self.one_hot else np.empty(0, dtype=np.int64)
        features = contexts.features if isinstance(contexts, Candidates) else contexts
        if self.n_features is None:
            features = np.empty((len(names), 0))
        return np.require(features, dtype=np.float64, requirements=["C", "W"]), numbers
