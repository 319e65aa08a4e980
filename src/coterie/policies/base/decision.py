"""A policy's estimates for each candidate, and its choice."""

import math
from collections.abc import Hashable, Mapping
from html import escape
from itertools import pairwise
from typing import Any, NamedTuple, final

import numpy as np

from coterie.arrays import Floats, Ints, JsonObject
from coterie.errors import NumberError
from coterie.models.actions import Actions, ActionsLike
from coterie.models.candidates import Candidates
from coterie.models.probability import first_best, probability_of_best
from coterie.models.protocol import TIE, View


def ranked(score: Floats) -> list[int]:
    """Return all candidates, best first; tied ones in list order, so the first is `first_best`."""
    value = score.tolist()  # plain floats: faster than NumPy for a list of candidates of the usual length
    by_score = sorted(range(len(value)), key=value.__getitem__, reverse=True)
    if not any(value[k] - value[after] < TIE for k, after in pairwise(by_score)):
        return by_score  # no ties, the usual case
    order: list[int] = []
    tied: list[int] = []
    for k in by_score:
        if tied and value[tied[0]] - value[k] >= TIE:
            order += sorted(tied)
            tied = []
        tied.append(k)
    return order + sorted(tied)


class Basis(NamedTuple):
    """What a decision rests on besides the user's own estimate.

    members, near_estimate, near_width
        How many users' models the decision uses, including the user's own, and their average estimate and width; by
        default 1, and the user's own.
    parts
        The parts of the estimate, for policies that have them.
    groups
        The user's probability of each group, for policies with groups.
    spread
        The standard deviation of each score, if `probability` is that of being the largest score.
    """

    members: Ints | int = 1
    near_estimate: Floats | None = None
    near_width: Floats | None = None
    parts: Mapping[str, Floats] | None = None
    groups: Floats | None = None
    spread: Floats | None = None


OWN = Basis()


@final
class Decision:
    """A policy's score and probability of each candidate, and what they are made of.

    All arrays have one number per candidate. `probability` is the share with which `choose` takes each candidate in
    the policy's present state; if it is not given, the best score has 1. Prints as a table.

    user, contexts
        What was asked.
    score
        The policy ranks by it.
    probability
        Sums to 1.
    estimate, width
        The user's own estimate of the payoff, and the confidence bound around it; by default the score, and 0.
    basis
        What else it rests on; its fields are attributes of the decision, too.
    choice
        The most probable candidate's position, the first of several.
    guess
        The position with the highest estimate less its width: the best as far as it is known, without exploration.

    >>> from coterie import CAB
    >>> found = CAB(one_hot=True, alpha=0.5).explain("ann", ["jazz", "news"])
    >>> found.choice, found.ranking, found.probability.tolist()
    (0, [0, 1], [1.0, 0.0])
    >>> found.rows()[0]["members"]
    1
    """

    probability: Floats

    def __init__(
        self,
        user: Hashable,
        contexts: ActionsLike,
        score: Floats,
        probability: Floats | None = None,
        *,
        estimate: Floats | None = None,
        width: Floats | None = None,
        basis: Basis = OWN,
    ) -> None:
        if not math.isfinite(score.sum()):
            k = int(np.argmin(np.isfinite(score)))
            raise NumberError(
                f"the score of candidate {k} is {score[k]}, expected a finite number: the model, or a parameter "
                "of the policy, is out of range; empty the model, or set other parameters"
            )
        n = len(score)
        self.user, self.score = user, score
        self.contexts: Actions = contexts
        self.estimate = score if estimate is None else estimate
        self.width = np.zeros(n) if width is None else width
        self.basis = basis
        _, near_estimate, near_width, self.parts, self.groups, self.spread = basis
        self.near_estimate = self.estimate if near_estimate is None else near_estimate
        self.near_width = self.width if near_width is None else near_width
        if probability is None:
            self.choice: int = first_best(score)
            self.probability = np.zeros(n)
            self.probability[self.choice] = 1.0
        else:
            self.choice = int(probability.argmax())
            self.probability = probability

    def less(self, amounts: Floats) -> "Decision":
        """Return the decision if each candidate's payoff were smaller by an amount, such as a price for its cost.

        If the policy says how uncertain its scores are, the probability is that of being the largest; otherwise the
        best is certain.

        >>> two = Decision("ann", ["large", "small"], np.array([0.9, 0.8]), basis=Basis(spread=np.array([0.1, 0.1])))
        >>> two.less(np.array([0.2, 0.0])).probability.round(2).tolist()
        [0.24, 0.76]
        """
        score, chances = self.score - amounts, None
        if self.spread is not None and self.spread.max() > 0:
            chances = probability_of_best(score, self.spread)
        own = {"estimate": self.estimate, "width": self.width}
        return Decision(self.user, self.contexts, score, chances, **own, basis=self.basis)

    @property
    def members(self) -> Ints:
        """How many users' models the decision uses, for each candidate."""
        members = self.basis.members
        return np.full(len(self.score), members, dtype=np.int64) if isinstance(members, int) else members

    @property
    def guess(self) -> int:
        """The position with the highest estimate less its width, the first of several."""
        if self.parts is None:
            return first_best(self.near_estimate - self.near_width)
        return first_best(self.estimate - self.width)

    @property
    def ranking(self) -> list[int]:
        """All positions: the choice, then the others by their scores."""
        return self.ranking_with(self.choice)

    def ranking_with(self, first: int) -> list[int]:
        """Return all positions: `first`, then the others by their scores."""
        order = ranked(self.score)
        order.remove(first)
        return [first, *order]

    def rows(self) -> list[JsonObject]:
        """Return one plain dict per candidate, in list order."""
        choice = self.choice
        return [
            {
                "candidate": k,
                "item": self._item(k),
                "estimate": float(self.estimate[k]),
                "width": float(self.width[k]),
                "members": int(self.members[k]),
                "near_estimate": float(self.near_estimate[k]),
                "near_width": float(self.near_width[k]),
                **{name: float(part[k]) for name, part in (self.parts or {}).items()},
                "score": float(self.score[k]),
                "probability": float(self.probability[k]),
                "chosen": k == choice,
            }
            for k in range(len(self.score))
        ]

    def _item(self, k: int) -> Hashable:
        """Return a candidate's id; None if it has features only."""
        if isinstance(self.contexts, Candidates):
            return self.contexts.ids[k]
        return None if isinstance(self.contexts, np.ndarray) else self.contexts[k]

    def _caption(self) -> str:
        text = f"user {self.user!r}: candidate {self.choice} of {len(self.score)}"
        if self.groups is not None and len(self.groups) > 1:
            text += f", groups {' '.join(f'{chance:.2f}' for chance in self.groups)}"
        return text

    def _table(self) -> tuple[list[str], list[list[str]]]:
        """Return the head and the lines of the table."""
        columns = list(self.parts or ("estimate ± width", "neighbours", "their estimate ± width"))
        body = [
            [
                "→" if row["chosen"] else "",
                str(row["candidate"]) if row["item"] is None else str(row["item"]),
                *(self._parts_of(row) if self.parts else self._estimates_of(row)),
                f"{row['score']:+.4f}",
            ]
            for row in self.rows()
        ]
        return ["", "candidate", *columns, "score"], body

    def _estimates_of(self, row: Mapping[str, Any]) -> list[str]:
        own = f"{row['estimate']:+.4f} ± {row['width']:.4f}"
        return [own, str(row["members"]), f"{row['near_estimate']:+.4f} ± {row['near_width']:.4f}"]

    def _parts_of(self, row: Mapping[str, Any]) -> list[str]:
        return [
            f"{row[name]:.4f}" if name == "sd" else f"{round(row[name], 4) + 0.0:+.4f}"
            for name in self.parts or ()
        ]

    def __str__(self) -> str:
        head, body = self._table()
        widths = [max(len(line[i]) for line in [head, *body]) for i in range(len(head))]
        lines = [self._caption()]
        for line in [head, *body]:
            cells = (cell.rjust(size) for cell, size in zip(line, widths, strict=True))
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head, body = self._table()
        top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in body
        )
        return f"<table><caption>{escape(self._caption())}</caption><tr>{top}</tr>{rows}</table>"


def decide_with(
    user: Hashable,
    contexts: Actions,
    own: View,
    near: View,
    scale: float,
    members: Ints | int,
    chances: Floats | None = None,
) -> Decision:
    """Return the decision by the estimate and bound of a group of `members` users, or by chances."""
    width = scale * near.spread
    return Decision(
        user, contexts, near.estimate + width if chances is None else near.estimate, chances,
        estimate=own.estimate, width=scale * own.spread, basis=Basis(members, near.estimate, width),
    )  # fmt: skip
