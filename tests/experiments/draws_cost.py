"""What the draws of Hierarchical cost: `python -m tests.experiments.draws_cost FOLDER… >results/draws.jsonl`.

Hierarchical is played again on the rounds of each folder of results, in the same runs, and always takes the candidate
with the highest score. Its defaults draw instead. Each line that is printed is a JSON object of one game: what both
lost, run by run, as a share of RAN's regret; for a log, the click-through rates.
"""

import json
import sys
from pathlib import Path
from typing import Any

import polars as pl

from coterie.experiments import Run, parse_spec
from coterie.experiments.run.play import play_batches
from coterie.experiments.run.worlds import make_world
from coterie.experiments.study.metrics import Summary, summarise
from coterie.policies import Policy
from coterie.policies.base.batch import run_one_by_one
from coterie.policies.base.decision import Decision


def without_draws(policy: Policy) -> Policy:
    """Let a policy take the candidate with the highest score."""
    decide, own = policy.decide, vars(policy)
    own["decide"] = lambda user, shown: _certain(decide(user, shown))
    own["run"] = lambda batch: run_one_by_one(policy, batch)
    return policy


def _certain(found: Decision) -> Decision:
    return Decision(found.user, found.contexts, found.score, estimate=found.estimate, width=found.width)


def played(run: Run) -> Summary:
    """Return the metrics of a run without draws."""
    policy = without_draws(run.make_policy())
    rows: Any = [pl.from_arrow(part) for _, part in play_batches(policy, run.blocks(0), 0, 2_000)]
    return summarise(pl.concat(rows))


def measured(numbers: dict[str, Any], policy: dict[str, Any]) -> dict[str, Any]:
    """Return what a policy of a folder lost, and what it would have lost without draws."""
    comparison = numbers["comparison"]
    world, spec = make_world(comparison["world_parameters"]), parse_spec(policy["policy"])
    runs = [played(Run.of(spec, world, seed, comparison["n_rounds"])) for seed in comparison["seeds"]]
    if comparison["measure"] == "ctr":
        drawn, highest = [run["ctr"] for run in policy["runs"]], [run.ctr for run in runs]
    else:
        [blind] = [one["runs"] for one in comparison["policies"] if one["policy"] == "random"]
        drawn, highest = (
            [one / other["regret"] for one, other in zip(lost, blind, strict=True)]
            for lost in ([run["regret"] for run in policy["runs"]], [run.regret for run in runs])
        )
    return {"measure": comparison["measure"], "drawn": drawn, "highest": highest}


def main() -> None:
    """Print a line for each time that Hierarchical played in the folders."""
    for folder in map(Path, sys.argv[1:]):
        numbers = json.loads((folder / "numbers.json").read_text(encoding="utf-8"))
        for policy in numbers["comparison"]["policies"]:
            if policy["policy"].startswith("hierarchical"):
                title = numbers["statistics"]["dataset"]
                named = {"folder": folder.name, "data": title, "policy": policy["policy"]}
                print(json.dumps(named | measured(numbers, policy)), flush=True)


if __name__ == "__main__":
    main()
