"""A policy's estimates for each candidate, and its choice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from coterie.arrays import Floats
from coterie.errors import NumberError
from coterie.models.candidates import Candidates
from coterie.models.protocol import TIE, Seen, View


def first_best(score: Floats) -> int:
    """Return the first candidate whose score is within rounding of the best."""
    return int(np.argmax(score.max() - score < TIE))


def ranked(score: Floats) -> list[int]:
    """Return all candidates, best first; tied ones in list order, so the first is `first_best`."""
    by_score = np.argsort(-score, kind="stable")
    if (np.diff(score[by_score]) <= -TIE).all():  # no ties, the usual case
        return by_score.tolist()  # type: ignore[no-any-return]
    order: list[int] = []
    tied: list[int] = []
    value = score.tolist()  # plain floats: ten times as fast to compare one by one
    for k in by_score.tolist():
        if tied and value[tied[0]] - value[k] >= TIE:
            order += sorted(tied)
            tied = []
        tied.append(k)
    return order + sorted(tied)


@final
@dataclass(frozen=True, eq=False)
class Decision:
    """A policy's estimates for each candidate: the user's own, the neighbourhood's, and the score.

    All arrays have one number per candidate. Prints as a table.

    >>> from coterie import CAB
    >>> told = CAB(one_hot=True, alpha=0.5).explain("ann", ["jazz", "news"])
    >>> told.choice, told.ranking, told.probability.tolist()
    (0, [0, 1], [1.0, 0.0])
    >>> told.rows()[0]["members"]
    1
    """

    user: Any
    contexts: Sequence[Any] | Candidates
    estimate: Floats  # the user's own estimate of the payoff
    width: Floats  # the confidence bound around it
    members: NDArray[np.int64]  # how many users' models the decision uses, including the user's own
    near_estimate: Floats  # their average estimate
    near_width: Floats  # their average width
    score: Floats  # the policy ranks by it
    seen: Seen | None = None  # the users included, if some shards could not be reached; else None
    probability: Floats | None = None  # each candidate's probability, if the choice is drawn
    drawn: int | None = None  # the drawn candidate, in that case
    parts: Mapping[str, Floats] | None = None  # the parts of the estimate, for policies that have them
    groups: Floats | None = None  # the user's probability of each group, for policies with groups

    def __post_init__(self) -> None:
        if not np.isfinite(self.score).all():
            k = int(np.argmin(np.isfinite(self.score)))
            raise NumberError(
                f"the score of candidate {k} is {self.score[k]}, expected a finite number: the model, or a parameter "
                "of the policy, is out of range; empty the model, or set other parameters"
            )

    @property
    def choice(self) -> int:
        """The chosen candidate's position."""
        return first_best(self.score) if self.drawn is None else self.drawn

    @property
    def ranking(self) -> list[int]:
        """All positions, best first; a drawn one comes before the others."""
        order = ranked(self.score)
        if self.drawn is not None:
            order.remove(self.drawn)
            order.insert(0, self.drawn)
        return order

    def rows(self) -> list[dict[str, Any]]:
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
                **({} if self.probability is None else {"probability": float(self.probability[k])}),
                "chosen": k == choice,
            }
            for k in range(len(self.score))
        ]

    def _item(self, k: int) -> Any:
        """Return a candidate's id; None if it has features only."""
        if isinstance(self.contexts, Candidates):
            return self.contexts.ids[k]
        return None if isinstance(self.contexts, np.ndarray) else self.contexts[k]

    def _caption(self) -> str:
        text = f"user {self.user!r}: candidate {self.choice} of {len(self.score)}"
        if self.groups is not None and len(self.groups) > 1:
            text += f", groups {' '.join(f'{chance:.2f}' for chance in self.groups)}"
        if self.seen is None:
            return text
        return f"{text} (partial: {self.seen.users} users, on {self.seen.shards} of {self.seen.of} shards)"

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
    user: Any, contexts: Any, own: View, near: View, scale: float, members: int, score: Floats | None = None
) -> Decision:
    """Return the decision by the estimate and bound of a group of `members` users, or by a drawn score."""
    width = scale * near.spread
    count = np.full(len(width), members, dtype=np.int64)
    found = near.estimate + width if score is None else score
    return Decision(user, contexts, own.estimate, scale * own.spread, count, near.estimate, width, found)
