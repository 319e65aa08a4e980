"""Many rounds as arrays, from the data to compiled loops, and their outcomes."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from coterie.arrays import Array, Bools, Floats, Ints
from coterie.errors import NumberError
from coterie.models._kernels.rounds import REFUSED, Rounds, Rule
from coterie.models.actions import Actions

__all__ = [
    "REFUSED", "TOO_LARGE", "Batch", "Outcome", "Rule", "as_rounds", "check_learned", "distinct", "names_of",
    "no_outcome", "outcome_of", "positions",
]  # fmt: skip

TOO_LARGE = "a number of the model would not be finite, or too large; give features of similar size"


class Batch(NamedTuple):
    """Rounds to play one after the other.

    With `served`, the rounds are a log: round t counts, and is learned from, only if the policy picks the
    candidate at position `served[t]`, whose payoff is `payoffs[t]`. Without it, every candidate's payoff is
    known, `payoffs` is (rounds, candidates), and every round is learned from. `Policy.run` plays it.

    >>> lists = np.array([[0, 1], [1, 0]])  # positions in the items
    >>> batch = Batch(["ann", "bob"], lists, ["jazz", "news"], np.array([1.0, 0.0]), served=np.array([0, 0]))
    >>> from coterie import CAB
    >>> CAB(one_hot=True).run(batch).kept.tolist()
    [True, True]
    """

    users: Any  # (rounds,): ids, as a sequence or an array
    candidates: Ints  # (rounds, candidates): positions in `items`
    items: Actions  # item ids, their feature vectors (items, n_features), or `Candidates` with both
    payoffs: Floats  # (rounds,) with `served`, else (rounds, candidates)
    served: Ints | None = None  # (rounds,)
    # What `Policy.run` does not read, for whoever plays the batch:
    expected: Floats | None = None  # (rounds, candidates) the expected payoffs, where they are known
    joined: Sequence[Hashable] = ()  # users who arrive before the first round
    left: Sequence[Hashable] = ()  # users who leave before it

    def cut(self, first: int, last: int) -> "Batch":
        """Return the rounds from `first` up to `last`."""
        some = slice(first, last)
        served = None if self.served is None else self.served[some]
        expected = None if self.expected is None else self.expected[some]
        before = (self.joined, self.left) if first == 0 else ()
        part = self.users[some], self.candidates[some], self.items, self.payoffs[some]
        return Batch(*part, served, expected, *before)

    def pieces(self, first: int, last: int, step: int) -> Iterator["Batch"]:
        """Yield the rounds from `first` up to `last`, at most `step` at a time."""
        for start in range(first, last, step):
            yield self.cut(start, min(start + step, last))


class Outcome(NamedTuple):
    """The outcome of each round of a batch; all arrays are (rounds,)."""

    choice: Ints  # the position picked
    kept: Bools  # whether the round was learned from
    members: Ints  # how many users' models the decision used
    updated: Ints  # how many users' models were updated


def no_outcome(rounds: int) -> Outcome:
    """Return outcomes to be filled in."""
    choice, members, updated = (np.zeros(rounds, dtype=np.int64) for _ in range(3))
    return Outcome(choice, np.zeros(rounds, dtype=np.bool_), members, updated)


def as_rounds(batch: Batch, who: Ints) -> Rounds:
    """Return a checked batch in the format of compiled loops. `who` is a number for each round's user."""
    assert batch.served is not None
    plain: tuple[Literal["C", "W"], ...] = ("C", "W")  # what loops are compiled for
    return Rounds(
        who,
        np.require(batch.candidates, np.int64, plain),
        np.require(batch.payoffs, np.float64, plain),
        np.require(batch.served, np.int64, plain),
        *no_outcome(len(who)),
    )


def outcome_of(rounds: Rounds) -> Outcome:
    """Return what a compiled loop wrote."""
    return Outcome(rounds.choice, rounds.kept, rounds.members, rounds.updated)


def check_learned(outcome: Outcome) -> Outcome:
    """Return an outcome, or raise NumberError if some payoffs were refused; all others were learned."""
    refused = np.flatnonzero(outcome.updated == REFUSED)
    if len(refused):
        raise NumberError(
            f"{len(refused)} of {len(outcome.updated)} payoffs were not learned, the first at position "
            f"{refused[0]}: {TOO_LARGE}; all others were learned"
        )
    return outcome


def names_of(users: Any) -> Sequence[Hashable]:
    """Return the ids of users as Python objects, not as NumPy's."""
    return users.tolist() if isinstance(users, np.ndarray) else users  # type: ignore[no-any-return]


def distinct(values: Array) -> tuple[Array, Ints]:
    """Return the different integers in an array, sorted, and the position in them of each entry."""
    low, high = (int(values.min()), int(values.max())) if values.size else (0, 0)
    if high - low > 4 * values.size + 1_000_000:
        found, where = np.unique(values, return_inverse=True)
        return found, where.reshape(values.shape)
    # A table is ten times faster than sorting, if it is not too long.
    seen = np.zeros(high - low + 1, dtype=np.bool_)
    wide = np.uint64 if values.dtype.kind == "u" else np.int64  # unsigned ids may be too large for int64
    shifted = (values.astype(wide) - wide(low)).astype(np.int64)
    seen[shifted] = True
    place = np.cumsum(seen) - 1
    return np.flatnonzero(seen).astype(wide) + wide(low), place[shifted]


def positions(users: Any) -> tuple[list[Hashable], Ints]:
    """Return the different ids, and the position in them of each round's user."""
    if isinstance(users, np.ndarray) and users.dtype.kind in "iu" and users.ndim == 1:
        found, where = distinct(users)
        return found.tolist(), where
    place: dict[Hashable, int] = {}
    where = np.array([place.setdefault(name, len(place)) for name in names_of(users)], dtype=np.int64)
    return list(place), where
