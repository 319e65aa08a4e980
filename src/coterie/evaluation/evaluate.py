"""Off-policy evaluation: what other policies would have earned on a log, from its actions and propensities.

The log is replayed in order: every policy first gives its probabilities of a record's actions, and then learns the
shown action's reward. So a policy is evaluated only on records that it had not seen.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, final

import numpy as np

from coterie.arrays import Floats
from coterie.data.logs.interactions import InteractionLog, open_interactions
from coterie.errors import ContextError, ParameterError
from coterie.evaluation.estimates import ALPHA, Estimate, EstimateSums, estimate, sums
from coterie.evaluation.evidence import Evidence, Span, Weighed, weigh
from coterie.evaluation.reward_model import RewardModel
from coterie.evaluation.targets import Target, encode_interaction, make_target
from coterie.policies import Policy

OnProgress = Callable[[int, int], None]  # records done, and all records
MOST_WINDOWS = 12
IN_WINDOW = 50  # records, at least
UNSUPPORTED = 0.05  # the largest share of a policy's choices with probability 0 in the log


@final
@dataclass(frozen=True, eq=False)
class Window:
    """The doubly robust estimate over some consecutive records."""

    first: int
    last: int  # the record after the window's last one
    at: float | None  # the time of its last record, seconds since 1970
    value: Estimate


@final
@dataclass(frozen=True, eq=False)
class Result:
    """The results of one policy."""

    name: str
    evidence: Evidence
    estimates: dict[str, Estimate]  # by "ips", "snips", "dm" and "dr"
    windows: list[Window]

    @property
    def best_estimate(self) -> Estimate:
        """The doubly robust estimate."""
        return self.estimates["dr"]


@final
@dataclass(frozen=True, eq=False)
class Evaluation:
    """The results of all policies, best first. `str()` gives the verdict with a table."""

    log: InteractionLog
    results: list[Result]
    level: float  # of the intervals
    notes: list[str] = field(default_factory=list)

    def __getitem__(self, name: str) -> Result:
        """Return the result of one policy."""
        return {result.name: result for result in self.results}[name]

    def __str__(self) -> str:
        from coterie.evaluation.words import as_text

        return as_text(self)


def evaluate(
    log: Any,
    policies: Mapping[str, Any] | Sequence[str] = ("logged", "baseline", "uniform"),
    *,
    level: float = 1 - ALPHA,
    clip: float | None = None,
    rewards: tuple[float, float] | None = None,
    on_progress: OnProgress = lambda done, records: None,
    skip_unsupported: bool = False,
    always: bool = False,
) -> Evaluation:
    """Estimate each policy's mean reward per decision on a log.

    `log` is what `open_interactions` takes or returns. `policies` are the names of fixed policies: "uniform",
    "baseline" (what the application would have shown) and "logged" (what was shown); or a mapping of names to
    these and to policies, which are copied and learn as the log is replayed. A policy made with `n_features`
    gets features of actions and contexts hashed into that many numbers.

    `level` is the coverage of the intervals. `clip` limits weights: this reduces the variance of estimates
    and adds bias; intervals stay valid. `rewards` are the least and the largest possible reward; by default 0
    and 1, or −1 and 1 if any is negative. `on_progress(done, records)` is called from time to time, and may raise to
    stop. With `skip_unsupported`, a policy that the log has no support for is left out with a note. With `always`,
    intervals and verdict hold for all looks at a growing log together, however many.

    Raises FileError if the log cannot be read, and ParameterError if a setting is not valid or the log does
    not support a policy's actions.

    >>> feedback = {"action": [0, 1] * 50, "reward": [1, 0] * 50, "pscore": [0.5] * 100}
    >>> found = evaluate(feedback, ["logged", "baseline"])
    >>> found["baseline"].estimates["ips"].value
    1.0
    """
    opened = open_interactions(log)
    if not 0 < level < 1:
        raise ParameterError(f"level is {level!r}, expected a number between 0 and 1, such as 0.95")
    if clip is not None and not (math.isfinite(clip) and clip > 1):
        raise ParameterError(f"clip is {clip!r}, expected a number above 1, or None to cut no weights")
    named = dict(policies) if isinstance(policies, Mapping) else {name: name for name in policies}
    if not named:
        raise ParameterError("policies names no policy; give at least one, such as 'uniform'")
    span = _span(opened, rewards)
    targets = {name: make_target(policy) for name, policy in named.items()}
    missing: list[str] | None = [] if skip_unsupported else None
    found = _replay(opened, targets, span, clip, on_progress, missing)
    found = {name: replace(evidence, always=always) for name, evidence in found.items()}
    results = [_result(opened, name, evidence, 1 - level) for name, evidence in found.items()]
    results.sort(key=lambda result: -result.best_estimate.value)
    return Evaluation(opened, results, level, [*_notes(opened, results, named, clip), *(missing or ())])


def _span(log: InteractionLog, rewards: tuple[float, float] | None) -> Span:
    paid = [one.reward for one in log.interactions]
    if not paid:
        raise ParameterError(f"{log.name} holds no interactions")
    least, most = min(paid), max(paid)
    if rewards is None:
        return Span(-1.0 if least < 0 else 0.0, 1.0)
    span = Span(float(rewards[0]), float(rewards[1]))
    if not (math.isfinite(span.size) and span.low < span.high):
        raise ParameterError(f"rewards is {rewards!r}, expected the least and the largest possible reward")
    if not span.low <= least <= most <= span.high:
        raise ParameterError(f"rewards is {rewards!r}, but the log has rewards from {least:g} to {most:g}")
    return span


def _replay(
    log: InteractionLog,
    targets: Mapping[str, Target],
    span: Span,
    clip: float | None,
    on_progress: OnProgress,
    missing: list[str] | None,
) -> dict[str, Evidence]:
    """Return the evidence of each policy; why the log has none for one is put into `missing`, or raised."""
    records = len(log.interactions)
    model = RewardModel(span, records)
    weighed: dict[str, list[Weighed]] = {name: [] for name in targets}
    predicted = np.zeros(records)
    for t, one in enumerate(log.interactions):
        try:
            encoded = encode_interaction(one)
        except ContextError as error:
            raise ContextError(f"record {t} of {log.name}: {error}") from error
        guess = model.predict(one, encoded)
        predicted[t] = guess[one.chosen]
        for name, target in targets.items():
            likely = target.probabilities(t, one, encoded)
            weighed[name].append(weigh(likely, one.chances, one.chosen, one.probability, guess, clip))
            target.learn(one, encoded)
        model.learn(one, encoded)
        if t % 256 == 0:
            on_progress(t, records)
    on_progress(records, records)
    found: dict[str, Evidence] = {}
    for name, rows in weighed.items():
        try:
            found[name] = _evidence(log, name, rows, predicted, span, clip)
        except ParameterError as error:
            if missing is None:
                raise
            missing.append(f"{error}.")
    return found


def _evidence(
    log: InteractionLog, name: str, rows: list[Weighed], predicted: Floats, span: Span, clip: float | None
) -> Evidence:
    columns = {name: np.array([getattr(row, name) for row in rows]) for name in Weighed._fields}
    weights = columns["weight"]
    missing = float(columns["unsupported"].mean())
    if missing > UNSUPPORTED:
        first = int(np.argmax(columns["unsupported"] > 0))
        raise ParameterError(
            f"{log.name} cannot tell what {name!r} would have earned: {missing:.0%} of its choices had "
            f"probability 0 in the log, the first in record {first}; evaluate a policy closer to the log's, or let "
            "the log explore"
        )
    if not weights.any():
        raise ParameterError(
            f"{log.name} cannot tell what {name!r} would have earned: it never shows what the policy asks for; "
            "evaluate a policy closer to the log's, or a longer log"
        )
    return Evidence(
        weights=weights,
        rewards=np.array([one.reward for one in log.interactions]),
        direct=columns["direct"],
        predicted=predicted,
        largest=_largest(log, float(columns["largest"].max()), clip),
        span=span,
        clipped=int(columns["over"].sum()),
        clip=clip,
        lost=min(1.0, float(columns["lost"].mean())),
        unsupported=missing,
    )


def _largest(log: InteractionLog, largest: float, clip: float | None) -> float:
    """Return the largest possible weight: from the log's probabilities, or one over the least of them."""
    if not log.has_chances and largest != 1.0:
        largest = max(largest, 1 / min(one.probability for one in log.interactions))
    return largest if clip is None else min(largest, clip)


def _result(log: InteractionLog, name: str, evidence: Evidence, alpha: float) -> Result:
    n_windows = max(1, min(MOST_WINDOWS, evidence.n // IN_WINDOW))
    ends = np.linspace(0, evidence.n, n_windows + 1).astype(int).tolist()
    parts = [evidence.part(first, last) for first, last in pairwise(ends)]
    made: list[EstimateSums] = [sums(part) for part in parts]
    windows = [
        Window(first, last, log.interactions[last - 1].at, estimate(part, alpha, [one])["dr"])
        for (first, last), part, one in zip(pairwise(ends), parts, made, strict=True)
    ]
    return Result(name, evidence, estimate(evidence, alpha, made), windows)


def _notes(
    log: InteractionLog, results: list[Result], named: Mapping[str, Any], clip: float | None
) -> list[str]:
    notes = list(log.notes)
    for result in results:
        evidence = result.evidence
        if clip is not None and evidence.lost > evidence.unsupported:
            notes.append(
                f"{result.name}: {evidence.clipped:,} of {evidence.n:,} weights were above {clip:g} and were cut "
                f"to it. {evidence.lost:.1%} of the policy is not observed, and its intervals are that much wider."
            )
        elif evidence.unsupported > 0:
            notes.append(
                f"{result.name}: {evidence.unsupported:.1%} of its choices had probability 0 in the log. Its "
                "intervals are that much wider."
            )
    if not log.has_chances:
        notes.append(
            "The log tells the probability of the shown action alone, so nobody can check whether it could have "
            "shown all that the policies ask for."
        )
    if any(isinstance(policy, Policy) for policy in named.values()):
        notes.append("Learning policies learned every record, in order, after they had decided on it.")
    return notes
