"""What every policy can do. A policy defines how it decides, learns and forgets; the rest follows."""

import copy
import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any, ClassVar, Self

from numpy.random import Generator

from coterie.errors import FileError, ParameterError
from coterie.models.files import State, Tensors, read_file, write_file
from coterie.policies.batch import Batch, Outcome, run_one_by_one
from coterie.policies.decision import Decision


class Policy(ABC):
    """Chooses one of several candidates for a user and learns from the payoff.

    Constructors take keyword parameters and keep them under the same names.
    """

    name: ClassVar[str]  # what files and commands call it
    reference: ClassVar[str]  # where the algorithm is described
    in_tensors: ClassVar[tuple[str, ...]] = ()  # parameters that `tensors` holds, because JSON could not
    not_saved: ClassVar[tuple[str, ...]] = ()  # parameters of the running program, that `load` may be given
    takes_names: ClassVar[bool] = False  # whether contexts may be ids, named features and a context together
    learned: int = 0  # how many payoffs were learned
    rng: Generator | None = None  # where randomness comes from, if any is used

    @abstractmethod
    def decide(self, user: Hashable, contexts: Any) -> Decision:
        """Choose, and return the reasons. Changes nothing but the random stream."""

    @abstractmethod
    def learn(self, user: Hashable, context: Any, payoff: float) -> int:
        """Learn what `user` paid for `context`, and return how many users' models were updated."""

    @abstractmethod
    def add(self, user: Hashable) -> None:
        """Register a user ahead of the first payoff. Nothing happens if the user is known."""

    @abstractmethod
    def drop(self, user: Hashable) -> None:
        """Forget a user. What others learned from the user's payoffs stays."""

    @property
    @abstractmethod
    def users(self) -> Sequence[Hashable]:
        """The known users, in no particular order."""

    @abstractmethod
    def tensors(self) -> Tensors:
        """Return all that was learned, as arrays."""

    @abstractmethod
    def restore(self, tensors: Tensors) -> None:
        """Take over what `tensors` returned."""

    def choose(self, user: Hashable, contexts: Any) -> int:
        """Return the position of the candidate to show. Changes nothing but the random stream."""
        return self.decide(user, contexts).choice

    def decide_many(self, users: Sequence[Hashable], contexts: Sequence[Any]) -> list[Decision]:
        """Decide for many users, each among their own candidates: what `decide` would return, one by one."""
        return [self.decide(user, shown) for user, shown in zip(users, contexts, strict=True)]

    def choose_many(self, users: Sequence[Hashable], contexts: Sequence[Any]) -> list[int]:
        """Choose for many users, each among their own candidates: what `choose` would return, one by one."""
        return [decision.choice for decision in self.decide_many(users, contexts)]

    def rank(self, user: Hashable, contexts: Any) -> list[int]:
        """Return all candidates' positions, best first; the first is what `choose` would return."""
        return self.decide(user, contexts).ranking

    def explain(self, user: Hashable, contexts: Any) -> Decision:
        """Return what `choose` would do now and why, without moving the random stream."""
        if self.rng is None:
            return self.decide(user, contexts)
        before = copy.deepcopy(self.rng.bit_generator.state)
        try:
            return self.decide(user, contexts)
        finally:
            self.rng.bit_generator.state = before

    def run(self, batch: Batch) -> Outcome:
        """Play many rounds: `decide`, then `learn` what was kept. Compiled where the policy has a kernel."""
        return run_one_by_one(self, batch)

    @property
    def parameters(self) -> dict[str, Any]:
        """The constructor's parameters, as given."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the policy to `path`, whole or not at all: a crash leaves the old file as it was."""
        elsewhere = (*self.in_tensors, *self.not_saved)
        given = {k: v for k, v in self.parameters.items() if k not in elsewhere}
        plain = {k: None if callable(v) or isinstance(v, Generator) else v for k, v in given.items()}
        functions = [k for k, v in given.items() if callable(v)]
        stream = None if self.rng is None else self.rng.bit_generator.state
        progress = {"learned": self.learned, "functions": functions, "stream": stream}
        write_file(path, self.name, State(plain, progress, self.tensors()))

    @classmethod
    def load(cls, path: str | os.PathLike[str], **given: Any) -> Self:
        """Read a policy that goes on exactly where the saved one stopped.

        `given` are the parameters that a file cannot hold: `alpha`, where it is a function; `engine`, if any.
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
            if policy.rng is not None:
                policy.rng.bit_generator.state = state.progress["stream"]
        except (ParameterError, TypeError, ValueError, KeyError) as error:
            raise FileError(f"{path} is damaged ({error}); use an older copy") from error
        return policy
