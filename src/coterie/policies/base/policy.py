"""The base class of policies. A policy defines how it decides, learns and forgets; the rest is here."""

import copy
import inspect
import os
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from threading import RLock
from typing import Any, ClassVar, Self

from numpy.random import Generator

from coterie.arrays import JsonObject
from coterie.errors import FileError, NumberError, ParameterError, UserError
from coterie.models.actions import ActionLike, Actions, ActionsLike
from coterie.models.batches import REFUSED, check_learned, names_of, no_outcome
from coterie.models.checks import check_pairs, read_items, read_payoff
from coterie.models.context_kind import check_kind
from coterie.models.files import (
    PolicyState,
    Tensors,
    pack_attributes,
    read_file,
    unpack_attributes,
    write_file,
)
from coterie.models.forget import without_item
from coterie.models.hierarchy.representation import EffectPart
from coterie.models.parts import Parts
from coterie.models.probability import pick
from coterie.policies.base.batch import Batch, Outcome, read_batch, run_one_by_one
from coterie.policies.base.calls import has_anonymous, wrap_methods
from coterie.policies.base.decision import Decision
from coterie.policies.base.log_batches import as_batch, read_log
from coterie.policies.base.parameters import make_rng

NOT_LEARNED = (
    "_lock",
    "_offered",
    "rng",
    "learned",
    "seed_number",
)  # `save` writes them in another way, if at all


class Policy(ABC):
    """Chooses one of several candidates for a user and learns from the payoff.

    Constructors take keyword parameters and keep them under the same names. Most policies have these:

    n_features
        How many features a context has. Contexts are then arrays (candidates, n_features), norms at most 1.
    one_hot
        True if contexts are item ids. Give either this or `n_features`.
    alpha
        How wide the confidence bound is: a number, or a function of t that replaces α·√log(1+t).
    seed
        Seed of all that is random: an integer, or a numpy.random.Generator.

    Every policy may be called from several threads: calls wait for each other. In all methods `user` is a hashable
    id, `contexts` is a list of candidates (an array (candidates, n_features), or item ids), `context` one of them,
    and `payoff` a number in [-1, 1]; `Hierarchical` takes payoffs of any scale.

    Invalid input raises UserError, ContextError or PayoffError, children of CoterieError, and changes nothing. A
    payoff after which a number of the model would not be finite, or too large, raises NumberError and changes
    nothing.

    >>> from coterie import LinUCB
    >>> policy = LinUCB(one_hot=True)
    >>> k = policy.choose("ann", ["jazz", "news"])
    >>> policy.learn("ann", ["jazz", "news"][k], payoff=1.0)
    1
    >>> policy.rank("ann", ["news", "jazz"])
    [1, 0]
    >>> list(policy.users), policy.learned
    (['ann'], 1)
    """

    name: ClassVar[str]  # its name in files and commands
    reference: ClassVar[str]  # where the algorithm is described
    tuned: ClassVar[Mapping[str, Sequence[Any]]] = {}  # values to try, besides the paper's for alpha
    in_tensors: ClassVar[Sequence[str]] = ()  # parameters stored in `tensors`, because JSON cannot hold them
    item_tensors: ClassVar[Sequence[str]] = ()  # prefixes of tensors for which `drop_item` works
    finds_neighbours: ClassVar[bool] = False  # whether it learns which users decide together
    not_saved: ClassVar[tuple[str, ...]] = ()  # parameters of the running program, which `load` may be given
    takes_both: ClassVar[bool] = False  # whether it takes n_features and one_hot together, for `Candidates`
    _lock: RLock  # held by every public method while it runs
    _bare_decide: Callable[..., Decision]  # `decide` and `draw` for `choose`, which holds the lock
    _bare_draw: Callable[..., int]
    _known: dict[Hashable, None]  # the known users, unless a policy keeps them in another way
    _offered: Actions = ()  # what `choose` was given last
    takes_names: ClassVar[bool] = False  # whether contexts may combine ids, named features and a context
    n_features: int | None = None  # how long vectors are, if it reads vectors
    one_hot: bool = False  # whether it reads ids
    largest_payoff: ClassVar[float] = 1.0  # payoffs are between it and its negative
    learned: int = 0  # how many payoffs were learned
    rng: Generator | None = None  # the random stream of choices, if any was used
    seed_number: int = 0  # with the state, decides what is random in learning

    def __new__(cls, *_args: Any, **_parameters: Any) -> Self:
        """Give each policy its lock, independent of its constructor."""
        policy = super().__new__(cls)
        policy._lock = RLock()
        policy._known = {}
        return policy

    def __getstate__(self) -> JsonObject:
        return self._copied({})

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        twin = memo[id(self)] = type(self).__new__(type(self))
        twin.__setstate__(self._copied(memo))
        return twin

    def __setstate__(self, state: JsonObject) -> None:
        vars(self).update(state)

    def _copied(self, memo: dict[int, Any]) -> JsonObject:
        """Return the state between two calls, without the lock, for copies and pickles."""
        for name in self.not_saved:
            if getattr(self, name) is not None:
                raise ParameterError(
                    f"this policy was made with {name}=…, which cannot be copied or pickled; save the policy, and "
                    f"load it with {name}=…"
                )
        with self._lock:
            return {name: copy.deepcopy(value, memo) for name, value in vars(self).items() if name != "_lock"}

    def __init_subclass__(cls) -> None:
        wrap_methods(cls)

    def read(self, contexts: ActionsLike) -> Actions:
        """Check `contexts`: return a list of ids, an array (candidates, n_features) of vectors, or `Candidates`."""
        return check_kind(self.n_features, self.one_hot).read(contexts)

    def read_payoff(self, payoff: Any) -> float:
        """Return `payoff` as a number. Raises PayoffError if this policy does not take it."""
        return read_payoff(payoff, self.largest_payoff)

    @abstractmethod
    def decide(self, user: Hashable, contexts: ActionsLike) -> Decision:
        """Return the score and probability of each of `contexts` for `user`, and the reasons. Changes nothing."""

    @abstractmethod
    def learn(self, user: Hashable, context: ActionLike, payoff: float) -> int:
        """Learn the `payoff` of `user` for `context`, and return how many users' models were updated.

        The random stream does not move: what is random in learning follows from the seed and the state.
        """

    def add(self, user: Hashable) -> None:
        """Register `user` before the first payoff. Does nothing if the user is known."""
        self._known.setdefault(user)

    def drop(self, user: Hashable) -> None:
        """Forget `user`, but not what others learned from the user's payoffs. Raises UserError if unknown."""
        if user not in self._known:
            raise UserError(f"user {user!r} is not known, so cannot be dropped")
        del self._known[user]

    @property
    def users(self) -> Sequence[Hashable]:
        """The known users, in no particular order."""
        return list(self._known)

    def tensors(self) -> Tensors:
        """Return all that was learned, as arrays: here, all attributes of plain data that are not parameters."""
        return pack_attributes({name: vars(self)[name] for name in self._learned_names()})

    def restore(self, tensors: Tensors) -> None:
        """Restore what `tensors` returned. Raises FileError if the arrays contradict each other."""
        found = unpack_attributes(tensors)
        if set(found) != set(self._learned_names()):
            raise FileError(f"the model file has {sorted(found)}, expected {sorted(self._learned_names())}")
        vars(self).update(found)

    def parts(self) -> Mapping[str, Parts]:
        """Return what grows, to be copied part by part while it changes; `head` has the rest. Here: none."""
        return {}

    def head(self) -> Tensors:
        """Return the arrays that are not in `parts`."""
        return self.tensors()

    def restore_parts(self, head: Tensors, parts: Mapping[str, Iterable[bytes]]) -> None:
        """Restore what `head` and all of `parts` returned."""
        self.restore(head)

    def contributions(
        self, user: Hashable, contexts: ActionsLike, k: int, most: int = 8
    ) -> Sequence[EffectPart]:
        """Return up to `most` parts of `user`'s estimate of candidate `k` of `contexts`, if the policy has them."""
        return ()

    def _learned_names(self) -> list[str]:
        return [name for name in vars(self) if name not in {*self.parameters, *NOT_LEARNED}]

    def choose(self, user: Hashable, contexts: ActionsLike) -> int:
        """Return the position in `contexts` of the candidate to show to `user`, drawn by `decide`'s probabilities.

        Moves the random stream by one number, or by none if a candidate has probability 1; changes nothing else.
        """
        return self._bare_draw(self._bare_decide(user, contexts))

    def draw(self, decision: Decision) -> int:
        """Return a candidate's position, drawn by the probabilities of `decision`, as `choose` does."""
        self._offered = decision.contexts
        if len(decision.probability) == 1 or decision.probability[decision.choice] == 1:
            return decision.choice
        if self.rng is None:
            self.rng = make_rng(getattr(self, "seed", 0))
        return pick(decision.probability, self.rng.random())

    def decide_many(self, users: Sequence[Hashable], contexts: Sequence[ActionsLike]) -> list[Decision]:
        """Return what `decide` would for each of `users`, each with a list of candidates from `contexts`."""
        check_pairs(users, contexts)
        return [self.decide(user, shown) for user, shown in zip(users, contexts, strict=True)]

    def choose_many(self, users: Sequence[Hashable], contexts: Sequence[ActionsLike]) -> list[int]:
        """Return what `choose` would for each of `users`, each with a list of candidates from `contexts`.

        >>> from coterie import CAB
        >>> CAB(one_hot=True).choose_many(["ann", "bob"], [["jazz", "news"], ["news", "film", "jazz"]])
        [0, 0]
        """
        return [self.draw(decision) for decision in self.decide_many(users, contexts)]

    def rank(self, user: Hashable, contexts: ActionsLike) -> list[int]:
        """Return the positions of all `contexts` for `user`: what `choose` would return, then the others by score."""
        decision = self.decide(user, contexts)
        return decision.ranking_with(self.draw(decision))

    def explain(self, user: Hashable, contexts: ActionsLike) -> Decision:
        """Return what `choose` would do now for `user` among `contexts` and why, without moving the random stream.

        `probability` in the answer is each candidate's probability: 1 for the choice of a policy that leaves nothing
        to chance, 1/candidates for `Random`.

        >>> from coterie import LinUCB
        >>> print(LinUCB(one_hot=True, alpha=0.5).explain("ann", ["jazz", "news"]))
        user 'ann': candidate 0 of 2
           candidate  estimate ± width  neighbours  their estimate ± width    score
        →       jazz  +0.0000 ± 0.4163           1        +0.0000 ± 0.4163  +0.4163
                news  +0.0000 ± 0.4163           1        +0.0000 ± 0.4163  +0.4163
        """
        return self.decide(user, contexts)

    @property
    def runs_compiled(self) -> bool:
        """Whether `run` is one compiled loop. Policies where this depends on settings override it."""
        return type(self).run is not Policy.run

    def neighbours(self, user: Hashable, context: ActionLike) -> list[Hashable]:
        """Return the users whose models decide for `user` on `context` now, including `user`. Here: `user` alone."""
        self.decide(user, [context])  # raises if either is not valid
        return [user]

    def learn_many(self, users: Sequence[Hashable], contexts: ActionsLike, payoffs: Any) -> int:
        """Learn many payoffs in the order given, as `learn` would one by one; return the number of updates.

        `contexts` has a row of features, or an item id, for each of `users`, and `payoffs` a number. All
        input is checked before anything is learned. If the policy has a kernel, this is one compiled pass. If a
        payoff cannot be learned, the others are, and then NumberError is raised.

        >>> from coterie import LinUCB
        >>> policy = LinUCB(one_hot=True)
        >>> policy.learn_many(["ann", "bob", "ann"], ["jazz", "news", "news"], [1, 0, 0])
        3
        """
        return self._learn_all(as_batch(self, users, contexts, payoffs))

    def fit(self, log: Any) -> Self:
        """Learn every record of a log in order, independent of the policy's own choices; return the policy.

        `log` is what `open_log` returns, or a table with the columns user, payoff, and item or features.

        >>> from coterie import CAB
        >>> CAB(one_hot=True).fit({"user": ["ann", "bob"], "item": ["jazz", "news"], "payoff": [1, 0]})
        CAB(one_hot=True), 2 users, 2 payoffs learned
        """
        self._learn_all(read_log(self, log))
        return self

    def _learn_all(self, batch: Batch) -> int:
        _, payoffs, _ = read_batch(batch, self.largest_payoff)
        if not len(batch.users):
            return 0
        if self.runs_compiled and not has_anonymous(batch.users):
            return int(self.run(batch).updated.sum())
        outcome = no_outcome(len(batch.users))
        rows = zip(
            names_of(batch.users), batch.candidates[:, 0].tolist(), payoffs[:, 0].tolist(), strict=True
        )
        for t, (user, place, payoff) in enumerate(rows):
            try:
                outcome.updated[t] = self.learn(user, batch.items[place], payoff)
            except NumberError:
                outcome.updated[t] = REFUSED
        return int(check_learned(outcome).updated.sum())

    def drop_item(self, item: Hashable) -> None:
        """Forget `item`: everything learned about it, including its effect on users' models.

        For policies over item ids. Raises ParameterError if what was learned about one item cannot be
        separated from others: over feature vectors, and in SparseCAB, COFIBA, DCCB and Hierarchical. Raises
        ContextError for an item that is not known.

        >>> from coterie import CAB
        >>> policy = CAB(one_hot=True).fit({"user": ["ann"], "item": ["jazz"], "payoff": [1]})
        >>> policy.drop_item("jazz")
        >>> policy.explain("ann", ["jazz"]).estimate.tolist()
        [0.0]
        """
        if self.item_tensors and getattr(self, "one_hot", False):
            read_items([item])
            self.restore(without_item(self.tensors(), item, self.item_tensors))
            return
        raise ParameterError(
            f"{type(self).__name__} cannot forget an item here: what it learned of one is mixed with what it learned "
            "of others; policies over item ids can (one_hot=True), but for COFIBA, DCCB, Hierarchical and those with "
            "an engine"
        )

    def __repr__(self) -> str:
        given = inspect.signature(type(self)).parameters
        shown = [
            f"{name}={_brief(value)}"
            for name, value in self.parameters.items()
            if name not in self.in_tensors
            and value is not given[name].default
            and value != given[name].default
        ]
        users = len(self.users)
        return (
            f"{type(self).__name__}({', '.join(shown)}), {users:,} {'user' if users == 1 else 'users'}, "
            f"{self.learned:,} {'payoff' if self.learned == 1 else 'payoffs'} learned"
        )

    def run(self, batch: Batch) -> Outcome:
        """Play the rounds of `batch`: `decide`, then `learn` what was kept. Return the outcome of each of them.

        Compiled if the policy has a kernel. The whole batch is checked before anything is learned.

        >>> import numpy as np
        >>> from coterie import CAB, Batch
        >>> lists = np.array([[0, 1], [1, 0]])  # positions in the items
        >>> payoffs = np.array([[1.0, 0.0], [0.0, 1.0]])
        >>> CAB(one_hot=True, alpha=0.5).run(Batch(["ann", "bob"], lists, ["jazz", "news"], payoffs)).choice.tolist()
        [0, 1]
        """
        return run_one_by_one(self, batch)

    @property
    def parameters(self) -> JsonObject:
        """The constructor's parameters, as given."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the policy to `path` atomically: a crash leaves the old file unchanged.

        Raises FileError if the file cannot be written, or if an id is of a type that a file cannot hold.
        """
        elsewhere = (*self.in_tensors, *self.not_saved)
        given = {k: v for k, v in self.parameters.items() if k not in elsewhere}
        plain = {k: None if callable(v) or isinstance(v, Generator) else v for k, v in given.items()}
        functions = [k for k, v in given.items() if callable(v)]
        stream = None if self.rng is None else self.rng.bit_generator.state
        progress = {
            "learned": self.learned, "functions": functions, "stream": stream, "seed_number": self.seed_number
        }  # fmt: skip
        write_file(path, self.name, PolicyState(plain, progress, self.tensors()))

    @classmethod
    def load(cls, path: str | os.PathLike[str], **given: Any) -> Self:
        """Read a policy that continues exactly where the saved one stopped.

        `given` are the parameters that a file cannot hold: `alpha`, if it is a function; `engine`, if any. Raises
        FileError if there is no such file at `path` or it is damaged, ParameterError if `given` is not what it needs.

        >>> import os, tempfile
        >>> from coterie import CAB
        >>> path = os.path.join(tempfile.mkdtemp(), "policy.safetensors")
        >>> CAB(one_hot=True).fit({"user": ["ann"], "item": ["jazz"], "payoff": [1]}).save(path)
        >>> CAB.load(path)
        CAB(one_hot=True), 1 user, 1 payoff learned
        """
        state = read_file(path, cls.name)
        needed = state.progress.get("functions", [])
        if sorted(given.keys() - set(cls.not_saved)) != sorted(needed):
            wanted = ", ".join(f"{name}=…" for name in needed) or "no further parameters"
            raise ParameterError(f"load({str(path)!r}) takes {wanted}, but got {sorted(given) or 'none'}")
        try:
            policy = cls(**{**state.parameters, **given})
            policy.restore(state.tensors)
            policy.learned = int(state.progress["learned"])
            policy.seed_number = int(state.progress["seed_number"])
            if (stream := state.progress["stream"]) is not None:
                policy.rng = make_rng(0)
                policy.rng.bit_generator.state = stream
        except (ParameterError, TypeError, ValueError, KeyError) as error:
            if given and isinstance(error, ParameterError):
                raise  # the file does not go with what is given
            raise FileError(f"{path} is damaged ({error}); use an older copy") from error
        return policy


def _brief(value: object) -> str:
    """Return a parameter as short text."""
    text = getattr(value, "__name__", None) if callable(value) else None
    return text or reprlib.repr(value)


wrap_methods(Policy)
