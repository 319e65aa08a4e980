"""Advice on a user's own log: whether users differ, whether sharing is likely to pay, and how to start."""

from typing import NamedTuple

import numpy as np

from coterie.advice.distances import Distances, measure_distances
from coterie.advice.groups import Groups, count_groups
from coterie.advice.ranking import APART, COIN, NEAR, NOTHING, ONE, PRIOR, WORTH, recommend
from coterie.advice.records import Records
from coterie.advice.sharing import Sharing, measure_sharing
from coterie.arrays import JsonObject
from coterie.errors import ParameterError
from coterie.policies import POLICIES
from coterie.report.page import count

PAPER_GAMMA = 0.2  # the paper's value


class Advice(NamedTuple):
    """The results of analysing a log."""

    name: str
    records: Records
    sharing: Sharing
    groups: Groups | None  # None if no user saw an item twice
    distances: Distances

    @property
    def settings(self) -> JsonObject:
        """The policy to start with and its parameters, as `coterie compare --policies` takes them."""
        gap = self.groups.gap if self.groups is not None else 0.0
        gamma = round(min(0.5, max(0.05, gap)), 2) if gap else PAPER_GAMMA
        settings: dict[str, JsonObject] = {
            PRIOR: {"policy": "hierarchical"},
            APART: {"policy": "linucb", "shared": False, "alpha": 0.1},
            ONE: {"policy": "linucb", "shared": True, "alpha": 0.1},
            NEAR: {"policy": "cab", "alpha": self.sharing.alpha, "gamma": gamma},
            NOTHING: {"policy": "hierarchical"},
        }
        return settings[self.recommended]

    @property
    def recommended(self) -> str:
        """The policy with the best predictions on held-out records; "none" if no policy beats chance."""
        return recommend(self.sharing.standings)

    def numbers(self) -> JsonObject:
        """All numbers, ready for JSON."""
        records, shared = self.records, self.sharing
        per_user = records.per_user
        return {
            "log": self.name,
            "users": records.n_users,
            "records": len(records.users),
            "items": records.n_items,
            "features": None if records.vectors is None else records.vectors.shape[1],
            "records_per_user": {
                "mean": float(per_user.mean()),
                "median": float(np.median(per_user)),
                "least": int(per_user.min()),
                "most": int(per_user.max()),
            },
            "mean_payoff": float(records.payoffs.mean()),
            "sharing": {
                "verdict": shared.verdict,
                "gain": shared.gain,
                "low": shared.low,
                "high": shared.high,
                "worth": WORTH,
                "first_records": shared.first.tolist(),
                "own": shared.own.tolist(),
                "everyone": shared.everyone.tolist(),
                "neighbours": shared.neighbours.tolist(),
                "best": shared.best,
                "alpha": shared.alpha,
            },
            "policies": [
                {
                    "policy": one.policy,
                    "score": one.score,
                    "low": one.score - 1.96 * one.error,
                    "high": one.score + 1.96 * one.error,
                    "scores": one.scores.tolist(),
                    "lead": one.lead,
                    "lead_error": one.lead_error,
                }
                for one in shared.standings
            ],
            "recommended": {"policy": self.recommended, "because": self.because()},
            "groups": None
            if self.groups is None
            else {**self.groups._asdict(), "counts": self.groups.counts.tolist()},
            "distances": {
                "mean": self.distances.mean,
                "paid_only": self.distances.paid,
                "between": self.distances.between,
                "within": self.distances.within,
                "ratio": self.distances.ratio if self.distances.within > 0 else None,
            },
            "settings": self.settings,
            "notes": list(records.notes),
        }

    def words(self) -> list[str]:
        """The advice in plain sentences, the answer first."""
        shared, first, last = self.sharing, int(self.sharing.first[0]), int(self.sharing.first[-1])
        lines = [
            self.answer(),
            f"Of two items shown to a user of which one paid more, a model that has seen {count(first, 'record')} of "
            f"each user finds the better one {_of_100(shared.own[0])} if it knows only this user, and "
            f"{_of_100(shared.shared[0])} if users share. With {count(last, 'record')} or more it is "
            f"{_of_100(shared.own[-1])} and {_of_100(shared.shared[-1])}. By chance it is 50 times in 100.",
            f"Averaged over these sizes sharing gains {100 * shared.gain:.1f} in 100 "
            f"(95 % interval {100 * shared.low:.1f} to {100 * shared.high:.1f}). It is worth the effort "
            f"if all of this interval is above {100 * WORTH:g}.",
            self.because(),
        ]
        if self.recommended == NOTHING:
            return lines
        if self.groups is not None:
            g = self.groups
            lines.append(
                f"For a typical item, users fall into about {g.number:.1f} groups that this log can tell apart "
                f"({g.low:.1f} to {g.high:.1f} over random halves of the data)"
                + (f", whose expected payoffs are {g.gap:.2f} apart." if g.gap else ".")
            )
        else:
            lines.append("No item was shown often enough to the same users to count groups of users.")
        d = self.distances
        if d.ratio >= 1.1:
            lines.append(
                f"Over all items, the models of two users are {d.ratio:.1f} times as far apart as two models of one "
                "user, each from half of the records."
            )
        return lines

    def answer(self) -> str:
        """Which policy to start with and whether users should share, in one sentence."""
        start = f"Start with {self.command()}"
        if self.recommended == NOTHING:
            return f"{start}, but expect little: this log does not show what users like."
        by_itself = ", and it finds that out by itself" if self.recommended == PRIOR else ""
        return {
            "pays": f"{start}: users should share feedback, which is likely to pay here.",
            "does not pay": f"{start}: sharing feedback between users is not likely to pay here{by_itself}.",
            "unclear": f"{start}: this log does not show whether sharing feedback pays{by_itself}.",
        }[self.sharing.verdict]

    def because(self) -> str:
        """Why the recommended policy is recommended, in a sentence or two."""
        standings, chosen = self.sharing.standings, self.recommended
        scores = ", ".join(f"{one.policy} {100 * one.score:.1f}" for one in standings)
        found = f"On held-out records, the better of two was found this many times in 100: {scores}."
        if chosen == NOTHING:
            return (
                f"{found} None is clearly better than a coin ({100 * COIN:g}): collect more records or other "
                "features. Hierarchical has nothing to tune, and learns while it collects them."
            )
        if chosen != PRIOR:
            return f"{found} {chosen} is clearly ahead of hierarchical, so start with it."
        if standings[0].policy == PRIOR:
            return f"{found} So start with hierarchical, which has nothing to tune."
        return (
            f"{found} The lead of {standings[0].policy} may be chance, or is below {100 * WORTH:g} and too small to "
            "matter, so start with hierarchical, which has nothing to tune."
        )

    def command(self) -> str:
        """The settings as a policy of `coterie compare`."""
        given = {**self.settings}
        policy = given.pop("policy")
        return ":".join([policy, *(f"{name}={value}" for name, value in given.items())])

    def code(self) -> str:
        """The settings as a line of Python."""
        given = {**self.settings}
        made = POLICIES[given.pop("policy")].__name__
        vectors = self.records.vectors
        kind = {"one_hot": True} if vectors is None else {"n_features": vectors.shape[1]}
        return f"{made}({', '.join(f'{name}={value!r}' for name, value in (kind | given).items())})"


def advise(records: Records, *, name: str = "log", splits: int = 3, seed: int = 0) -> Advice:
    """Analyse a log and return advice on it."""
    try:
        groups: Groups | None = count_groups(records, seed=seed)
    except ParameterError:
        groups = None
    sharing = measure_sharing(records, splits=splits, seed=seed)
    return Advice(name, records, sharing, groups, measure_distances(records, seed=seed))


def _of_100(share: float) -> str:
    return f"{100 * share:.0f} times in 100"
