"""Compares policies: every policy plays the same rounds, in several runs with different seeds."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import numpy as np
import polars as pl

from coterie.data.datasets import Source
from coterie.errors import ParameterError
from coterie.evaluation.verdict import (
    FIRST_RUNS,
    LEVEL,
    ClickRate,
    RunRegrets,
    chance_of_best,
    is_ahead,
    level_at,
    rate,
)
from coterie.experiments.run.parallel import OnProgress, Task, Workers, record_all
from coterie.experiments.run.record import policy_path
from coterie.experiments.run.runs import Run
from coterie.experiments.run.specs import Spec
from coterie.experiments.run.trace import read_trace
from coterie.experiments.study.metrics import (
    Curve,
    Spread,
    Summary,
    cumulative_ctr,
    cumulative_regret,
    curve,
    kept_records,
    over_runs,
    ratio_to_random,
    summarise,
)
from coterie.experiments.study.neighbourhoods import neighbourhoods
from coterie.policies import load


@final
@dataclass(frozen=True)
class Plan:
    """What to compare, and the folder of the traces: `out/traces`, one file per policy and seed."""

    name: str  # of the world, as the user gave it
    world: Source
    specs: list[Spec]
    n_rounds: int
    n_runs: int
    seed: int  # of the first run; the next has seed + 1
    out: Path

    def __post_init__(self) -> None:
        least_values = ("rounds", self.n_rounds, 1), ("runs", self.n_runs, 1), ("seed", self.seed, 0)
        for what, value, least in least_values:
            if value < least:
                raise ParameterError(f"{what}={value}; expected at least {least}")
        for spec in self.specs:
            self._run(spec, self.seed).make_policy()  # a bad parameter raises before anything runs

    @property
    def is_log(self) -> bool:
        """Whether only the payoffs of shown items are known."""
        return bool(self.world.is_log)

    @property
    def seeds(self) -> list[int]:
        """One seed per run."""
        return list(range(self.seed, self.seed + self.n_runs))

    def _run(self, spec: Spec, seed: int) -> Run:
        return Run.of(spec, self.world, seed, self.n_rounds)

    def tasks(self, spec: Spec) -> list[Task]:
        """Return the runs of one policy, each with the path of its trace."""
        runs = [self._run(spec, seed) for seed in self.seeds]
        return [(run, self.out / "traces" / run.file_name()) for run in runs]

    def all_tasks(self) -> list[Task]:
        """Return the runs of all policies, policy by policy, with every setting that a spec stands for."""
        return [task for spec in self.specs for one in spec.variants() for task in self.tasks(one)]


N_RUNS, MOST_RUNS = FIRST_RUNS, 2 * FIRST_RUNS  # in a world, unless the user says how many
LOG_RUNS = 3  # on a log: they only average over the drawn lists


@final
@dataclass(frozen=True)
class PolicyResult:
    """One policy over all its runs."""

    spec: Spec
    runs: list[Summary]  # in the order of the seeds
    curve: Curve  # regret against rounds; for a log, click-through rate against kept records
    to_random: Spread | None  # regret divided by RAN's, if RAN took part
    rate: ClickRate | None = None  # for a log: the click-through rate with its sampling error

    @property
    def sample(self) -> Any:
        """What the verdict compares: the regrets of the runs, or the rate on a log."""
        return self.rate or RunRegrets(np.array([run.regret for run in self.runs]))

    def over(self, name: str) -> Spread:
        """Return mean and spread over the runs of one number of `Summary`."""
        return over_runs([float(getattr(run, name)) for run in self.runs])


@final
@dataclass(frozen=True)
class Comparison:
    """The results, best policy first."""

    plan: Plan
    results: list[PolicyResult]
    pictured: Spec | None  # the first policy that has neighbourhoods
    picture: pl.DataFrame | None  # its neighbourhoods at the end of the first run, see `neighbourhoods`
    # For specs that stand for several settings: each setting's result. The plan has the best of them instead.
    hindsight: dict[str, dict[str, Spread]] = field(default_factory=dict)

    @property
    def is_clear(self) -> bool:
        """Whether the first is ahead of all others by more than chance explains."""
        first, *others = (result.sample for result in self.results)
        return is_ahead(
            first, others, self._n_hidden, LEVEL if self.plan.is_log else level_at(len(self.results[0].runs))
        )

    @property
    def chance(self) -> float:
        """A bound on the share of comparisons in which some policy leads by this much, if all are equal."""
        first, *others = (result.sample for result in self.results)
        return chance_of_best(first, others, self._n_hidden)

    @property
    def closest(self) -> PolicyResult:
        """The policy over which the first's lead is least certain."""
        first, *others = self.results
        return max(others, key=lambda other: first.sample.chance_over(other.sample))

    @property
    def _n_hidden(self) -> int:
        """How many settings were played of which only the best is among the results."""
        return sum(len(found) - 1 for found in self.hindsight.values())


def compare(
    plan: Plan, on_progress: OnProgress = lambda done: None, workers: int | Workers | None = None
) -> Comparison:
    """Play the runs not played yet, and return the results. `on_progress` is given the rounds done of each run."""
    record_all(plan.all_tasks(), on_progress, workers)
    return read_comparison(plan)


def compare_until_clear(
    plan: Plan,
    most_runs: int,
    bars: Callable[[Plan], AbstractContextManager[OnProgress]],
    workers: int | Workers | None = None,
) -> Comparison:
    """Compare with the plan's runs and, while there is no clear winner, with twice as many, up to `most_runs`."""
    while True:
        with bars(plan) as on_progress:
            found = compare(plan, on_progress, workers)
        if plan.is_log or len(plan.specs) == 1 or 2 * plan.n_runs > most_runs or found.is_clear:
            return found
        plan = replace(plan, n_runs=2 * plan.n_runs)


def read_comparison(plan: Plan) -> Comparison:
    """Return the results from the traces."""
    measure = cumulative_ctr if plan.is_log else cumulative_regret
    # Runs, curve and rate of each policy.
    read = {one.text: _read(plan, one, measure) for spec in plan.specs for one in spec.variants()}
    plan, hindsight = _in_hindsight(plan, {text: runs for text, (runs, _, _) in read.items()})
    blind = next((spec for spec in plan.specs if spec.name == "random"), None)
    results = []
    for spec in plan.specs:
        runs, series, paid = read[spec.text]
        ratio = None
        if blind is not None and not plan.is_log:
            ratio = ratio_to_random([r.regret for r in runs], [r.regret for r in read[blind.text][0]])
        results.append(PolicyResult(spec, runs, series, ratio, paid))
    results.sort(key=_place)
    return Comparison(plan, results, *_picture(plan), hindsight)


def _in_hindsight(plan: Plan, runs: dict[str, list[Summary]]) -> tuple[Plan, dict[str, dict[str, Spread]]]:
    """Return the plan with the best setting of each spec that stands for several, and all their results."""
    sign = -1 if plan.is_log else 1
    specs, found_by_spec = [], {}
    for spec in plan.specs:
        variants = spec.variants()
        found = [
            over_runs([run.ctr if plan.is_log else run.regret for run in runs[one.text]]) for one in variants
        ]
        worth = [np.inf if np.isnan(value.mean) else sign * value.mean for value in found]
        specs.append(variants[int(np.argmin(worth))])
        if len(variants) > 1:
            found_by_spec[spec.text] = {one.text: value for one, value in zip(variants, found, strict=True)}
    return replace(plan, specs=specs), found_by_spec


def _place(result: PolicyResult) -> float:
    """Return the sort key of a result: the best has the least. Policies that kept no record come last."""
    if result.rate is None:
        return result.over("regret").mean
    return float("inf") if result.rate.value != result.rate.value else -result.rate.value


def _read(
    plan: Plan, spec: Spec, measure: Callable[[pl.DataFrame], Any]
) -> tuple[list[Summary], Curve, ClickRate | None]:
    traces = [read_trace(path) for _, path in plan.tasks(spec)]
    paid = rate([kept_records(trace) for trace in traces]) if plan.is_log else None
    return [summarise(trace) for trace in traces], curve([measure(trace) for trace in traces]), paid


def _picture(plan: Plan) -> tuple[Spec | None, pl.DataFrame | None]:
    for spec in plan.specs:
        run, path = plan.tasks(spec)[0]
        if not run.can_resume:
            continue
        policy = load(policy_path(path))
        if policy.finds_neighbours and len(policy.users) > 1:
            return spec, neighbourhoods(policy, plan.world, run.rounds(), read_trace(path, ["user"]))
    return None, None
