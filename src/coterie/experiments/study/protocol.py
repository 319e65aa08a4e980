"""The paper's protocol (section 5): tune on the first fifth, report on the rest, over several runs.

A policy starts the reported part untrained, as in the paper's figures.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, final

import polars as pl

from coterie.arrays import JsonObject
from coterie.data.datasets import Dataset
from coterie.data.worlds.world_as_dataset import Rest
from coterie.errors import ParameterError
from coterie.experiments.run.parallel import OnProgress, Task, Workers, record_all
from coterie.experiments.run.runs import Run
from coterie.experiments.run.specs import Spec, defaults
from coterie.experiments.study.compare import Comparison, Plan, compare
from coterie.experiments.study.metrics import over_runs
from coterie.experiments.study.tuning import Grid, merit, paper_grid, quick_grid, read_score, score, settings

QUICK_ROUNDS = {False: 10_000, True: 600_000}  # by whether it is a log
QUICK_RUNS, PAPER_RUNS = 2, 5


class Tried(NamedTuple):
    """One setting and its merit in tuning."""

    spec: Spec
    merit: float


@final
@dataclass(frozen=True)
class Protocol:
    """What is tuned and reported, and the folder of the results: `out/tuning`, `out/traces`."""

    name: str  # of the dataset
    data: Dataset
    specs: Sequence[Spec]
    out: Path
    n_runs: int = PAPER_RUNS
    seed: int = 0
    tuned_share: float = 0.2
    tuning_runs: int = 1
    n_rounds: int | None = None  # use only this many rounds of the data
    quick: bool = False
    n_settings: int | None = None  # how many settings of each policy are tried; all, if None
    not_played: Mapping[str, str] = field(default_factory=dict)  # by policy: why it does not play

    def __post_init__(self) -> None:
        if not 0 < self.tuned_share < 1:
            raise ParameterError(f"tuned_share is {self.tuned_share}, expected a number between 0 and 1")
        for name, value in (
            ("runs", self.n_runs),
            ("tuning_runs", self.tuning_runs),
            ("n_settings", 1 if self.n_settings is None else self.n_settings),
        ):
            if value < 1:
                raise ParameterError(f"{name}={value}; expected at least 1")
        if self.n_tuned < 1 or self.n_reported < 1:
            raise ParameterError(
                f"{self.name} has {self.total} rounds; too few to tune on some and report the rest"
            )

    @property
    def total(self) -> int:
        """All rounds that are used."""
        asked = [self.data.n_rounds]
        if self.n_rounds is not None:
            asked.append(self.n_rounds)
        elif self.quick:
            asked.append(QUICK_ROUNDS[self.data.is_log])
        return int(min(asked))

    @property
    def n_tuned(self) -> int:
        """Rounds of the tuning part."""
        return int(self.total * self.tuned_share)

    @property
    def n_reported(self) -> int:
        """Rounds of the reported part."""
        return self.total - self.n_tuned

    @property
    def grid(self) -> Grid:
        """The values to try."""
        return (quick_grid if self.quick else paper_grid)(self.data.n_users)

    def left_out(self) -> list[str]:
        """Return what a quick reproduction leaves out."""
        if not self.quick:
            return []
        full = paper_grid(self.data.n_users)
        tuned = {name for spec in self.specs for name in set(defaults(spec.name)) - set(spec.parameters)}
        parts = [(self.total, self.data.n_rounds, "rounds")]
        if "alpha" in tuned:
            parts.append((len(self.grid.alpha), len(full.alpha), "values of α in tuning"))
        if "k" in tuned:
            parts.append((len(self.grid.k), len(full.k), "numbers of clusters in tuning"))
        parts.append((self.n_runs, PAPER_RUNS, "runs of the paper"))
        return [f"{done:,} of the {all_:,} {what}" for done, all_, what in parts if done < all_]

    def tuning_tasks(self, spec: Spec) -> list[tuple[Spec, list[Task]]]:
        """Return every setting of a policy with its runs; empty if there is nothing to tune."""
        tried = settings(spec, self.grid, self.n_settings)
        if len(tried) == 1:
            return []
        found = []
        for one in tried:
            runs = [Run.of(one, self.data, self.seed + k, self.n_tuned) for k in range(self.tuning_runs)]
            folder = self.out / "tuning"
            found.append((one, [(run, (folder / run.file_name()).with_suffix(".json")) for run in runs]))
        return found

    def tune(self, on_progress: OnProgress = lambda done: None, workers: int | Workers | None = None) -> None:
        """Play the tuning runs that have not been played yet."""
        tasks = [task for spec in self.specs for _, own in self.tuning_tasks(spec) for task in own]
        record_all(tasks, on_progress, workers, score)

    def tried(self, spec: Spec) -> list[Tried]:
        """Return every setting of a policy and its merit, in the order of the grid."""
        found = []
        for one, tasks in self.tuning_tasks(spec):
            merits = [merit(read_score(path, run), self.data.is_log) for run, path in tasks]
            found.append(Tried(one, over_runs(merits).mean))
        return found

    def best(self, spec: Spec) -> Spec:
        """Return the best setting in tuning; the first of equals."""
        tried = self.tried(spec)
        return max(tried, key=lambda one: one.merit).spec if tried else spec

    def plan(self) -> Plan:
        """Return the comparison of the tuned policies on the reported part."""
        rest, specs = Rest(self.data, self.n_tuned), [self.best(spec) for spec in self.specs]
        return Plan(self.name, rest, specs, self.n_reported, self.n_runs, self.seed, self.out)

    def tuning_table(self) -> pl.DataFrame:
        """Return every setting tried and its merit."""
        rows = [
            {"policy": spec.text, "setting": one.spec.text, **_numbers(one.spec), "merit": one.merit}
            for spec in self.specs
            for one in self.tried(spec)
        ]
        schema = {"policy": pl.String, "setting": pl.String, "alpha": pl.Float64, "alpha2": pl.Float64}
        return pl.DataFrame(rows, schema={**schema, "k": pl.Int64, "merit": pl.Float64})


def _numbers(spec: Spec) -> JsonObject:
    return {name: spec.parameters.get(name) for name in Grid._fields}


def run_protocol(
    protocol: Protocol,
    tuning: OnProgress = lambda done: None,
    reporting: Callable[[Plan], OnProgress] = lambda plan: lambda done: None,
    workers: int | Workers | None = None,
) -> Comparison:
    """Tune, then report. Finished runs are not played again; `tuning` and `reporting` receive the progress."""
    workers = workers or os.cpu_count()
    protocol.tune(tuning, workers)
    plan = protocol.plan()
    return compare(plan, reporting(plan), workers)
