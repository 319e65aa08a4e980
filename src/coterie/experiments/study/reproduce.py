"""All of the paper's section 5 for one dataset: tuning, runs, figures, tables, numbers and a report."""

import json
from pathlib import Path
from typing import NamedTuple

import polars as pl

from coterie.arrays import JsonObject
from coterie.data import WORLDS
from coterie.data.datasets import TABLE_1, Dataset, open_dataset
from coterie.data.worlds.world_as_dataset import Rest
from coterie.errors import CoterieError
from coterie.experiments.run.parallel import Workers
from coterie.experiments.study.compare import Comparison
from coterie.experiments.study.distances import user_distances
from coterie.experiments.study.metrics import Summary
from coterie.experiments.study.paper_figures import PaperCurve, Sheet, figure_1, figure_2, figure_3, save
from coterie.experiments.study.protocol import Protocol, run_protocol
from coterie.experiments.study.table import as_json

TITLES = {
    "lastfm": "LastFM",
    "delicious": "Delicious",
    "movielens": "MovieLens, every list new",
    "movielens-repeat": "MovieLens, lists that repeat",
    "kddcup": "KDD Cup",
    "avazu": "Avazu",
    "tuenti": "Tuenti (generated twin)",
    "kddcup-twin": "KDD Cup (generated twin)",
    "avazu-twin": "Avazu (generated twin)",
    "open-bandit": "Open Bandit",
    "digits": "Digits",
    "cancer": "Tissue samples",
    "wine": "Wines",
    "iris": "Irises",
    "prompts": "Prompts for three language models",
    "movielens-100k": "MovieLens-100K, every list new",
    "movielens-groups": "MovieLens-100K, groups (M-CNB's game)",
    "movielens-locb": "MovieLens-100K, groups (LOCB's game)",
    "electricity": "Electricity suppliers",
    "swissmetro": "Swissmetro",
    "camera": "Cameras",
    "bank": "Credit cards",
    "margarine": "Margarine",
    "ta-feng": "Ta Feng, next basket",
    "insteval": "InstEval, lecturers",
}
DISTANT = ("lastfm", "delicious")  # the two panels of Figure 3
NAMED = {"policy": pl.String, "figure": pl.String}
CURVES = {**NAMED, "time": pl.Int64, "mean": pl.Float64, "spread": pl.Float64}


class Reproduced(NamedTuple):
    """The results for one dataset."""

    protocol: Protocol
    comparison: Comparison
    sheets: dict[str, Sheet]  # by file name: figure-1, figure-2, figure-3

    @property
    def title(self) -> str:
        """The dataset's title."""
        return title_of(self.protocol.name, self.protocol.data)


def title_of(name: str, data: Dataset) -> str:
    """Return a dataset's title in reports, which says if it is partial or generated."""
    title = TITLES.get(name, f"{name} (built-in world)" if name in WORLDS else name)
    return f"{title} (partial)" if data.provenance == "real, partial" else title


def reproduce(
    protocol: Protocol, comparison: Comparison | None = None, workers: int | Workers | None = None
) -> Reproduced:
    """Run the protocol unless its `comparison` is given, and write all results except the report."""
    comparison = comparison or run_protocol(protocol, workers=workers)
    evidence = Reproduced(protocol, comparison, _sheets(protocol, comparison))
    write_numbers(evidence)
    for name, sheet in evidence.sheets.items():
        save(sheet, protocol.out / name)
    return evidence


def _sheets(protocol: Protocol, comparison: Comparison) -> dict[str, Sheet]:
    title = title_of(protocol.name, protocol.data)
    if protocol.data.is_log:
        lines = figure_1(comparison)
        caption = f"Click-through rate against kept records, {title}"
        return {"figure-1": Sheet(caption, [lines], "kept records", "click-through rate", [title])}
    sheets = {}
    lines = figure_2(comparison)
    if lines:
        caption = f"Cumulative regret over that of RAN, {title}"
        sheets["figure-2"] = Sheet(caption, [lines], "rounds", "regret over RAN's", [title])
    panels = _distances(protocol)
    if panels:
        caption = "Average distance between the served user's model and all others'"
        names = [line.title for line in panels]
        sheets["figure-3"] = Sheet(caption, [[line] for line in panels], "rounds", "distance", names)
    return sheets


def _distances(protocol: Protocol) -> list[PaperCurve]:
    """Return the panels of Figure 3: LastFM beside Delicious, or one of them if the other is missing."""
    if protocol.name not in DISTANT:
        return []
    lines = []
    for name in DISTANT:
        data = protocol.data
        if name != protocol.name:
            try:
                data = open_dataset(name, n_rounds=protocol.data.n_rounds)
                _ = data.n_users
            except CoterieError:
                continue
        found = user_distances(Rest(data, protocol.n_tuned), protocol.n_reported, protocol.seed)
        lines.append(figure_3(found, title_of(name, data)))
    return lines


def statistics(evidence: Reproduced) -> JsonObject:
    """Return the dataset's row of Table 1, with the paper's if there is one."""
    protocol, data = evidence.protocol, evidence.protocol.data
    kept = evidence.comparison.results[0].over("kept").mean
    paper = TABLE_1.get(protocol.name.removesuffix("-twin"))
    return {
        "dataset": evidence.title,
        "provenance": data.provenance,
        "users": data.n_users,
        "features": data.n_features or data.n_items,
        "items": data.n_items,
        "candidates": data.n_candidates,
        "rounds": protocol.total,
        "tuned": protocol.n_tuned,
        "reported": protocol.n_reported,
        "retained": round(kept) if data.is_log else protocol.n_reported,
        "paper": None if paper is None else paper._asdict(),
    }


def numbers(evidence: Reproduced) -> JsonObject:
    """Return all results as JSON values."""
    protocol = evidence.protocol
    chosen = protocol.specs, evidence.comparison.plan.specs
    found = as_json(evidence.comparison)
    for policy in found["policies"]:
        policy["traces"] = [Path(path).name for path in policy["traces"]]
    found["report"] = "report.html"
    return {
        "dataset": protocol.name,
        "statistics": statistics(evidence),
        "notes": list(protocol.data.notes),
        "quick": protocol.quick,
        "left_out": protocol.left_out(),
        "not_played": dict(protocol.not_played),
        "tuned": {spec.text: best.text for spec, best in zip(*chosen, strict=True)},
        "grid": protocol.grid._asdict(),
        "comparison": found,
    }


def runs_table(comparison: Comparison) -> pl.DataFrame:
    """Return the metrics of each run of each policy."""
    rows = [
        {"policy": result.spec.text, "seed": seed, **run._asdict()}
        for result in comparison.results
        for seed, run in zip(comparison.plan.seeds, result.runs, strict=True)
    ]
    counted = {"n_rounds": pl.Int64, "kept": pl.Int64}
    schema = {name: counted.get(name, pl.Float64) for name in Summary._fields}
    return pl.DataFrame(rows, schema={"policy": pl.String, "seed": pl.Int64, **schema})


def write_numbers(evidence: Reproduced) -> None:
    """Write numbers.json, runs.parquet, curves.parquet and tuning.parquet."""
    out = evidence.protocol.out
    (out / "numbers.json").write_text(json.dumps(numbers(evidence), indent=2) + "\n")
    runs_table(evidence.comparison).write_parquet(out / "runs.parquet")
    points = [
        (line.title, name, *point)
        for name, sheet in evidence.sheets.items()
        for lines in sheet.panels
        for line in lines
        for point in zip(*(part.tolist() for part in line.curve), strict=True)
    ]
    pl.DataFrame(points, schema=CURVES, orient="row").write_parquet(out / "curves.parquet")
    evidence.protocol.tuning_table().write_parquet(out / "tuning.parquet")
