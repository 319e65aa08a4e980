"""The hardness of data, HD({i_t, C_t}, η) (Section 4), and its sparse counterpart spHD.

paper                                   here
HD({i_t, C_t}, η)                       hardness(users, contexts, eta)
spHD({i_t, C_t}, η), s*                 hardness(users, contexts, eta, sparsity=s)
min over k of λ_min(I + Σ x x^T)        ridge + min over z of G(z), see `sphere`

More rounds only add to a matrix, so each user has a number of visits up to which the worst choices keep an
eigenvalue of at most η. HD is the last round before the next visit; it is T if some user never gets that far.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, final

import numpy as np

from coterie.arrays import Floats, Ints
from coterie.errors import ContextError, ParameterError
from coterie.models.actions import Actions
from coterie.models.checks import check_count, check_number, read_items, read_vectors
from coterie.theory.sphere import ROUNDING, Lists, compare, descend, fall, pad, starts


@final
@dataclass(frozen=True)
class Hardness:
    """HD lies from `lower` to `upper`, both proved (up to 1e-9 in an eigenvalue); if equal, they are HD."""

    lower: int
    upper: int
    lower_by: str  # what proves it
    upper_by: str
    user: Hashable | None = None  # the user whose matrix can stay small until `lower`
    direction: Floats | None = field(default=None, compare=False)  # in which it stays small

    @property
    def kind(self) -> Literal["exact", "bounds"]:
        """Whether the two bounds meet."""
        return "exact" if self.lower == self.upper else "bounds"

    @property
    def value(self) -> int:
        """HD, if it is known exactly."""
        if self.kind != "exact":
            raise ParameterError(
                f"the hardness is only known to lie from {self.lower} to {self.upper}; use either, or more effort"
            )
        return self.lower


@dataclass
class _Visitor:
    """One user's visits: their rounds and candidate lists."""

    name: Hashable
    times: Ints  # (visits,) rounds counted from 1
    lists: Lists
    n_rounds: int

    def last(self, survived: int) -> int:
        """Return the last round before the visit after `survived` ones."""
        return self.n_rounds if survived >= len(self.times) else int(self.times[survived]) - 1

    def visits(self, upto: int) -> int:
        """Return the number of visits in rounds 1 to `upto`."""
        return int(np.searchsorted(self.times, upto, side="right"))


def hardness(
    users: Sequence[Hashable],
    contexts: Sequence[Actions],
    eta: float,
    *,
    everyone: Iterable[Hashable] | None = None,
    ridge: float = 1.0,
    sparsity: int | None = None,
    effort: int = 4000,
    seed: int = 0,
) -> Hardness:
    """Return proved bounds on HD at level `eta` for rounds with these users and candidate vectors.

    `everyone` names all users, if some of them never visit; matrices start from `ridge` times the identity (1
    in CAB; 0 in the paper's sparse appendix). With `sparsity` s the eigenvalues are restricted ones: the
    least over all s-by-s diagonal blocks.

    The lower bound names a user and a direction; the upper one is proved by bounding all directions at once,
    examining at most `effort` cells of the sphere per user. Up to about four features the two
    usually meet. With many features and lists of very different candidates the upper bound may be T.

    >>> hardness(["ann", "ann", "ann"], [[[1.0]], [[1.0]], [[1.0]]], eta=2.5).value
    1
    """
    eta, ridge = check_number("eta", eta), check_number("ridge", ridge)
    check_count("effort", effort)
    visitors, n_rounds, absent = _read(users, contexts, everyone)
    if sparsity is not None:
        check_count("sparsity", sparsity)
    limit = eta - ridge
    if limit < -ROUNDING or not n_rounds:
        return Hardness(0, 0, "no matrix is so small", "no matrix is so small")
    if absent is not None:
        return Hardness(n_rounds, n_rounds, "a user who never comes", "the number of rounds", absent)
    rng = np.random.default_rng(seed)
    found = Hardness(0, n_rounds, "the first round", "the number of rounds")
    for visitor in visitors:
        found = _raise(found, visitor, _witnesses(visitor.lists, limit, rng, sparsity), limit)
    upper, upper_by = found.lower, ""
    for visitor in visitors:
        found, bound, how = _settle(found, visitor, limit, rng, sparsity, effort)
        if bound > upper or not upper_by:
            upper, upper_by = max(bound, upper), how
    if found.lower >= upper:
        upper, upper_by = found.lower, upper_by if found.lower < n_rounds else "the number of rounds"
    return Hardness(found.lower, upper, found.lower_by, upper_by, found.user, found.direction)


def _read(
    users: Sequence[Hashable], contexts: Sequence[Actions], everyone: Iterable[Hashable] | None
) -> tuple[list[_Visitor], int, Hashable | None]:
    _check_lengths(users, contexts)
    if not len(users):
        return [], 0, None
    first = np.asarray(contexts[0], dtype=np.float64)
    if first.ndim != 2:
        raise ContextError(f"contexts have shape {first.shape}, expected (candidates, n_features)")
    lists = [read_vectors(rows, first.shape[1]) for rows in contexts]
    times: dict[Hashable, list[int]] = {}
    for t, user in enumerate(users, start=1):
        times.setdefault(user, []).append(t)
    absent = next((user for user in everyone or () if user not in times), None)
    visitors = [
        _Visitor(user, np.array(when), pad([lists[t - 1] for t in when]), len(users))
        for user, when in times.items()
    ]
    return visitors, len(users), absent


def _check_lengths(users: Sequence[Hashable], lists: Sequence[Actions]) -> None:
    if len(users) != len(lists):
        raise ParameterError(
            f"there are {len(users)} users and {len(lists)} candidate lists; expected one of each per round"
        )


def _witnesses(lists: Lists, limit: float, rng: np.random.Generator, sparsity: int | None) -> Floats:
    """Return directions in which the worst choices stay at most `limit` for many rounds."""
    tried = starts(lists, rng, sparsity)
    best = -1
    while True:
        survived = _survived(fall(lists, tried), limit)
        if survived.max() <= best:
            return tried
        best = int(survived.max())
        if best >= len(lists.vectors):
            return tried
        # From the directions that last longest, minimise over the rounds they last plus one.
        longest = np.argsort(-survived, kind="stable")[:6]
        tried = np.concatenate([tried[longest], descend(lists.upto(best + 1), tried, sparsity)])


def _survived(least: Floats, limit: float) -> Ints:
    """Return for how many rounds each direction's sum stays at most `limit`; least is (n, rounds)."""
    level = limit + ROUNDING * max(1.0, abs(limit))
    counted: Ints = (np.cumsum(least, axis=1) <= level).sum(axis=1)
    return counted


def _raise(found: Hardness, visitor: _Visitor, directions: Floats, limit: float) -> Hardness:
    """Return `found` with the lower bound that these directions prove, if it is better."""
    survived = _survived(fall(visitor.lists, directions), limit)
    last = visitor.last(int(survived.max()))
    if last <= found.lower:
        return found
    z = directions[survived.argmax()]
    return Hardness(last, max(found.upper, last), "a user and a direction", found.upper_by, visitor.name, z)


def _settle(
    found: Hardness,
    visitor: _Visitor,
    limit: float,
    rng: np.random.Generator,
    sparsity: int | None,
    effort: int,
) -> tuple[Hardness, int, str]:
    """Return a round after which this user's matrix is proved to be above; may raise the lower bound."""
    upto = found.lower + 1
    while upto <= visitor.n_rounds:
        answer = compare(visitor.lists.upto(visitor.visits(upto)), limit, rng, sparsity, effort)
        if answer.verdict == "above":
            return found, upto - 1, answer.how
        if answer.verdict == "below" and answer.direction is not None:
            found = _raise(found, visitor, answer.direction[None], limit)
            upto = max(upto, found.lower) + 1
        else:
            # Undecided here; with more rounds the proof is easier.
            visits = visitor.visits(upto)
            upto = visitor.last(max(visits + 1, visits * 5 // 4)) + 1
    return found, visitor.n_rounds, "the number of rounds"


def one_hot_hardness(
    users: Sequence[Hashable],
    items: Sequence[Actions],
    eta: float,
    *,
    n_items: int,
    everyone: Iterable[Hashable] | None = None,
) -> Hardness:
    """Return the exact HD if contexts are item ids, that is, basis vectors of length `n_items`.

    Call a round forced for item a if a is its only candidate, and let F_a be user j's forced rounds for a. Then

        min over choices of λ_min(I + Σ x xᵀ) = 1 + min over items a of F_a.

    Proof. A sum of e_a e_aᵀ is diagonal with the counts of how often each item was chosen, so λ_min is 1 plus
    the smallest count. Every sequence of choices counts a at least F_a times, so no choice is below the right
    side. Take the item a with the smallest F_a and, in each round that has another candidate, choose that
    one: then a is counted exactly F_a times. ∎

    So if every list offers two items, the least eigenvalue stays 1 and HD = T at every level η ≥ 1: Theorem 1
    is then vacuous. Restricted eigenvalues give the same answer for any sparsity, since e_a is 1-sparse.

    >>> one_hot_hardness("aaaa", [["x"], ["y"], ["x", "y"], ["x"]], eta=1.0, n_items=2).value
    1
    """
    check_number("eta", eta)
    check_count("n_items", n_items)
    _check_lengths(users, items)
    n_rounds = len(users)
    seen = {item for rows in items for item in read_items(rows)}
    if len(seen) > n_items:
        raise ParameterError(f"n_items is {n_items}, but the lists hold {len(seen)} different items")
    by = "forced rounds"
    if eta < 1 or not n_rounds:
        return Hardness(0, 0, "no matrix is so small", "no matrix is so small")
    forced: dict[Hashable, dict[Hashable, int]] = {user: {} for user in [*(everyone or ()), *users]}
    short = dict.fromkeys(forced, n_items)  # items whose forced count is still at most η - 1
    need = int(np.floor(eta - 1 + ROUNDING)) + 1  # forced rounds that raise an item above η
    done: dict[Hashable, int] = {}
    for t, (user, rows) in enumerate(zip(users, items, strict=True), start=1):
        if len(set(rows)) == 1:
            counts, item = forced[user], rows[0]
            counts[item] = counts.get(item, 0) + 1
            if counts[item] == need:
                short[user] -= 1
                if not short[user]:
                    done[user] = t - 1
    last = {user: done.get(user, n_rounds) for user in forced}
    worst = max(last, key=lambda user: last[user])
    return Hardness(last[worst], last[worst], by, by, worst)
