"""The contest as a whole: mean ranks, wins and losses, and how often a policy is best or not clearly behind.

Counted are the lines in which the policy that we recommend played. Ranked are the policies that played at least
three quarters of those that are for more than two, in the lines that all of these played, so that every rank is
among the same rivals; the others have wins and losses in the lines they played. Ranks are compared by Friedman's
test; two policies differ if their mean ranks differ by more than the critical difference of Nemenyi (Demšar, JMLR
2006):

    q·√(k(k + 1)/(6N))       q: the 0.95 quantile of the studentised range of k values, over √2

A policy is *clearly behind* in a line if it is behind the best of the line in their common runs and the 95 %
interval of the difference, by Student's t, does not hold 0; without common runs, by the spreads of both (Welch).
With few runs the interval is wide. On a log, where all runs share the records, the sampling error of the rate counts
if it is larger.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from coterie.experiments.study.contest import FIRST, RANDOM, ContestLine, ContestScore, columns

LEVEL = 0.05
MOST = 0.75  # the share of the lines that a policy must have played to be ranked


class OverallRank(NamedTuple):
    """One policy over all lines that count."""

    name: str
    title: str
    rank: float | None  # the mean over the ranked lines; 1 is best, ties share; None if it played too few
    n_lines: int  # that it played
    near: int  # of them, those in which it is best or not clearly behind
    wins: int  # lines in which the leader loses more than this policy
    losses: int  # lines in which the leader loses less
    share: tuple[
        float, float
    ]  # the 95 % interval of the share of games in which this policy beats the leader


class Overall(NamedTuple):
    """The verdict over all lines."""

    n_lines: int  # that count
    n_ranked: int  # of them, those that all policies with a rank played
    standings: list[OverallRank]  # best mean rank first: the leader; then those without a rank
    critical: float  # the smallest clear difference between two mean ranks
    chance: float  # of ranks so different, if all policies were equal (Friedman)

    @property
    def behind(self) -> list[OverallRank]:
        """The policies that are clearly behind the leader."""
        return [one for one in self.ranked if one.rank - self.standings[0].rank > self.critical]

    @property
    def ranked(self) -> list[Any]:
        """The policies with a rank."""
        return [one for one in self.standings if one.rank is not None]


def judge(lines: Sequence[ContestLine]) -> Overall | None:
    """Return the verdict over all lines; None with fewer than 2 lines or 3 policies to rank."""
    ours = FIRST[0]
    counted = [line for line in lines if ours in line.scores] or list(lines)
    of_many = [line for line in counted if len(line.scores.keys() - {RANDOM}) > 2]
    played_by = {name: sum(name in line.scores for line in of_many) for name in columns(counted)}
    names = [name for name, n_played in played_by.items() if n_played >= MOST * len(of_many)]
    common = [line for line in counted if all(name in line.scores for name in names)]
    if len(common) < 2 or len(names) < 3:
        return None
    from scipy.stats import binomtest, friedmanchisquare, rankdata, studentized_range

    losses = np.array([[line.scores[name].loss(line.is_log) for name in names] for line in common])
    ranks = rankdata(losses, axis=1).mean(axis=0)
    n, k = losses.shape
    critical = (
        float(studentized_range.ppf(1 - LEVEL, k, np.inf)) / math.sqrt(2) * math.sqrt(k * (k + 1) / (6 * n))
    )
    leader = names[int(np.argmin(ranks))]
    of = dict(zip(names, ranks.tolist(), strict=True))
    standings = []
    for name in columns(counted):
        played = [line for line in counted if name in line.scores]
        apart = [
            line.scores[name].loss(line.is_log) - line.scores[leader].loss(line.is_log) for line in played
        ]
        better, worse = sum(gap < 0 for gap in apart), sum(gap > 0 for gap in apart)
        found = binomtest(better, max(better + worse, 1)).proportion_ci(1 - LEVEL)
        near = sum(not is_clearly_behind(line, name) for line in played)
        share = (float(found.low), float(found.high))
        standings.append(
            OverallRank(
                name, played[0].scores[name].title, of.get(name), len(played), near, better, worse, share
            )
        )
    standings.sort(key=lambda one: k + 1 if one.rank is None else one.rank)
    return Overall(len(counted), n, standings, critical, float(friedmanchisquare(*losses.T).pvalue))


def is_clearly_behind(line: ContestLine, name: str) -> bool:
    """Return whether a policy is clearly behind the best of a line."""
    best = line.best()
    assert best is not None
    if name == best:
        return False
    sign = -1 if line.is_log else 1
    mine, other = line.scores[name], line.scores[best]
    n = min(len(mine.runs), len(other.runs))
    from scipy.stats import t

    if n > 1 and not line.is_log:
        apart = np.subtract(mine.runs[:n], other.runs[:n])
        error, degrees = float(apart.std(ddof=1)) / math.sqrt(n), n - 1
        lead = float(apart.mean())
    else:
        n = max(n, 2)
        lead, error = sign * (mine.mean - other.mean), math.hypot(_error(mine, n), _error(other, n))
        degrees = 2 * (n - 1)
    return lead > 0 and lead > float(t.ppf(1 - LEVEL / 2, degrees)) * error


def _error(score: ContestScore, n_runs: int) -> float:
    """Return the standard error of a mean over runs; of a log's rate at least its sampling error."""
    return max(score.spread / math.sqrt(n_runs), score.error or 0.0)


def table(found: Overall) -> str:
    """Return the verdict as Markdown."""
    leader = found.standings[0]
    head = f"| policy | mean rank | best or not clearly behind | won, lost against {leader.title} | share won, 95 % |"
    lines = [head, "| --- | --- | --- | --- | --- |"]
    for one in found.standings:
        versus = "" if one is leader else f"{one.wins}, {one.losses}"
        share = "" if one is leader else f"{one.share[0]:.0%} to {one.share[1]:.0%}"
        rank = "–" if one.rank is None else f"{one.rank:.2f}"
        lines.append(f"| {one.title} | {rank} | {one.near} of {one.n_lines} | {versus} | {share} |")
    return "\n".join(lines) + "\n"


def words(found: Overall) -> str:
    """Return the verdict in a few sentences."""
    leader, behind = found.standings[0], found.behind
    rest = [one for one in found.ranked[1:] if one not in behind]
    text = (
        f"{leader.title} is best or not clearly behind in {leader.near} of {leader.n_lines} games. It has the best "
        f"mean rank, {leader.rank:.2f} of {len(found.ranked)} policies over the {found.n_ranked} games that all of "
        "them played."
    )
    if found.chance > LEVEL:
        return f"{text} But equal policies would have ranks so different in {found.chance:.0%} of contests."
    text += f" Mean ranks that differ by more than {found.critical:.2f} differ clearly (Nemenyi, 95 %): "
    text += f"clearly behind are {_named(behind)}"
    text += f"; not clearly {_named(rest)}." if rest else "."
    left_out = [one.title for one in found.standings if one.rank is None]
    if left_out:
        text += (
            f" Not ranked, because they played less than three quarters of the games: {', '.join(left_out)}."
        )
    return text


def _named(standings: Sequence[OverallRank]) -> str:
    return ", ".join(f"{one.title} ({one.rank:.2f})" for one in standings) or "none"


def first_page(lines: Sequence[ContestLine]) -> str:
    """Return the contest in two sentences, for the first page."""
    ours = FIRST[0]
    counted = [line for line in lines if ours in line.scores]
    first = sum(line.best() == ours for line in counted)
    level = sum(not is_clearly_behind(line, ours) for line in counted) - first
    behind = len(counted) - first - level
    return (
        f"`Hierarchical` is best in {first}, level with the best in {level}, and clearly behind in {behind} of "
        f"{len(counted)} games."
    )


def where_not(lines: Sequence[ContestLine]) -> str:
    """Return the games in which another policy is clearly better, in a sentence for the first page."""
    clear = dict[str, list[str]]()
    for line, best in _lost(lines):
        if is_clearly_behind(line, FIRST[0]):
            clear.setdefault(line.scores[best].title, []).append(line.title)
    if not clear:
        return "No other policy is clearly better in any game."
    games = "; ".join(f"{title} on {' and '.join(where)}" for title, where in clear.items())
    return f"Other policies are clearly better in some games: {games}."


def ahead(lines: Sequence[ContestLine]) -> str:
    """Return all games in which another policy is ahead, with both numbers, as a Markdown list."""
    found = []
    for line, best in _lost(lines):
        how = "clearly" if is_clearly_behind(line, FIRST[0]) else "not clearly"
        found.append(f"- {line.title}: {line.scores[best].title} {_both(line, best, FIRST[0])}, {how}")
    return "\n".join(["", *(found or ["- none"]), ""])


def _lost(lines: Sequence[ContestLine]) -> list[tuple[ContestLine, str]]:
    """Return the lines in which another policy is ahead, with its name."""
    ours = FIRST[0]
    both = [(line, line.best()) for line in lines if ours in line.scores]
    return [(line, best) for line, best in both if best is not None and best != ours]


def _both(line: ContestLine, best: str, other: str) -> str:
    """Return the numbers of two policies; with one more digit if they look equal."""
    values = line.scores[best].mean, line.scores[other].mean
    digits = 4 if line.is_log else 3
    first, second = (f"{value:.{digits}f}" for value in values)
    if first == second:
        first, second = (f"{value:.{digits + 1}f}" for value in values)
    return f"({first} against {second})"
