"""A policy from functions, so that any agent that can choose and learn can be used as a policy."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np

from coterie.arrays import Floats
from coterie.errors import ContextError, FileError, ParameterError
from coterie.models import make_models
from coterie.models.actions import ActionLike, ActionsLike
from coterie.models.checks import read_payoff
from coterie.models.files import Tensors
from coterie.policies.base.decision import Decision
from coterie.policies.base.parameters import Seed, make_rng
from coterie.policies.base.policy import Policy

ROUNDING = 1e-6  # tolerance for the sum of probabilities
NOT_SAVED = (
    "a policy made from functions cannot be saved or loaded: make it again from the functions, and teach it with "
    "learn_many or fit"
)


@final
@dataclass(kw_only=True, eq=False, repr=False)
class FromFunction(Policy):
    """A policy that calls your own functions to choose and to learn.

    on_choose
        Called with the user and the candidates, an array (candidates, n_features) or a list of item ids. Returns the
        position of one of them, or the probability of each, from which one is drawn. A function that draws itself
        should return the probabilities instead: `evaluate` treats a position as certain.
    on_learn
        Called with the user, the context that was shown, and the payoff. None if there is nothing to learn.
    on_drop
        Called with a user who is dropped. None if the agent stores nothing about users.
    n_features
        How many features a context has. Contexts are then arrays (candidates, n_features), norms at most 1.
    one_hot
        True if contexts are item ids. Give either this or `n_features`.
    seed
        Starts the draws among probabilities: an integer, or a numpy.random.Generator.

    It cannot be saved, since a file cannot hold functions. A copy, as made by `evaluate`, copies the objects of bound
    methods; state that plain functions keep elsewhere is shared. Raises ParameterError if a setting is invalid.

    >>> seen = {}
    >>> policy = FromFunction(
    ...     on_choose=lambda user, items: max(range(len(items)), key=lambda k: seen.get(items[k], 0)),
    ...     on_learn=lambda user, item, payoff: seen.update({item: payoff}),
    ...     one_hot=True,
    ... )
    >>> policy.learn("ann", "news", 1.0), policy.choose("bob", ["jazz", "news"])
    (1, 1)
    """

    name = "from-function"
    reference = "the function's own"

    on_choose: Callable[[Any, Any], Any]
    on_learn: Callable[[Any, Any, float], Any] | None = None
    on_drop: Callable[[Any], Any] | None = None
    n_features: int | None = None
    one_hot: bool = False
    seed: Seed = 0
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        for what in ("on_choose", "on_learn", "on_drop"):
            function = getattr(self, what)
            if not callable(function) and (function is not None or what == "on_choose"):
                raise ParameterError(f"{what} is {function!r}, expected a function")
        self.rng = make_rng(self.seed)
        self.models = make_models(self.n_features, self.one_hot)  # to check contexts; they stay empty

    def decide(self, user: Hashable, contexts: ActionsLike) -> Decision:
        """Call the function."""
        contexts = self.models.read(contexts)
        chance = self._read(self.on_choose(user, contexts), len(contexts))
        return Decision(user, contexts, chance, chance, estimate=np.zeros(len(chance)))

    def _read(self, returned: Any, n: int) -> Floats:
        """Return each candidate's probability."""
        expected = f"expected a position from 0 to {n - 1}, or {n} probabilities that sum to 1"
        try:
            answer = np.asarray(returned)
        except ValueError as error:
            raise ContextError(f"on_choose returned {returned!r}, {expected}") from error
        if answer.shape == () and answer.dtype.kind in "iu" and 0 <= answer < n:
            return np.asarray(np.eye(n)[int(answer)])
        if answer.shape == (n,) and answer.dtype.kind == "f":
            chance = answer.astype(np.float64)
            if np.isfinite(chance).all() and (chance >= 0).all() and abs(chance.sum() - 1) <= ROUNDING:
                return np.asarray(chance / chance.sum())
        raise ContextError(f"on_choose returned {returned!r}, {expected}")

    def learn(self, user: Hashable, context: ActionLike, payoff: float) -> int:
        """Pass the payoff to the function."""
        (read,) = self.models.read([context])
        paid = read_payoff(payoff)
        if self.on_learn is not None:
            self.on_learn(user, read, paid)
        self._known.setdefault(user)
        self.learned += 1
        return int(self.on_learn is not None)

    def drop(self, user: Hashable) -> None:
        """Forget a user, and call on_drop."""
        if self.on_drop is not None and user in self._known:
            self.on_drop(user)
        super().drop(user)

    def tensors(self) -> Tensors:
        """Raise FileError: a file cannot hold functions."""
        raise FileError(NOT_SAVED)

    def restore(self, tensors: Tensors) -> None:
        """Raise FileError: a file cannot hold functions."""
        raise FileError(NOT_SAVED)
