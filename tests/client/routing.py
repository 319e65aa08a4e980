"""Which model answers a prompt, played with judged answers: `python -m tests.client.routing FOLDER`.

The service learns from the prompts of `val.jsonl`, then of `test_holdout.jsonl`, each in random order, and goes on
learning; quality and cost are counted on the latter, as the authors of the data do. FOLDER is the one of
`coterie data get prompts`. Writes results/prompts.json and docs/pictures/prompts.svg.
"""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from coterie.client.litellm import words_of
from coterie.data.logs.interactions import SHARED
from coterie.data.logs.records import Rank
from coterie.data.logs.rules import Config
from coterie.data.published.catalogue import read_known, source
from coterie.service.core.bandit import Bandit
from coterie.service.core.question import Action, Question

PRICES = (0.0, 1.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
SEEDS = 10
START = 1_800_000_000_000
ROOT = Path(__file__).parents[2]
# Cost and quality on the same prompts, from the authors' repository (experiments/01_stationary_budget_pacing).
PUBLISHED = (
    (2.9e-5, 0.793), (8.4e-5, 0.813), (2.4e-4, 0.857), (6.4e-4, 0.903), (1.6e-3, 0.919), (4.4e-3, 0.925),
    (1.1e-2, 0.930),
)  # fmt: skip


def read_prompts(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the prompts to learn from first, and those that count."""
    found = {}
    for file in source("prompts").files:
        content = read_known("prompts", file.name, folder, True)[1]
        found[file.name] = [json.loads(line) for line in content.splitlines() if line.strip()]
    return found["val.jsonl"], found["test_holdout.jsonl"]


def play(
    first: list[dict[str, Any]], counted: list[dict[str, Any]], price: float, seed: int
) -> dict[str, float]:
    """Return mean quality, cost and payoff of the prompts that count."""
    rng = np.random.default_rng([seed, int(price)])
    made = Bandit()
    made.secret = b"prompts"  # so that the draws are the same in every run
    made.configure(Config(), START)
    models = sorted(first[0]["arms"])
    lines = [first[k] for k in rng.permutation(len(first))] + [
        counted[k] for k in rng.permutation(len(counted))
    ]
    quality, cost = [], []
    for t, line in enumerate(lines):
        shown = [Action(models[k]) for k in rng.permutation(len(models))]
        event = f"{seed}-{t}"
        question = Question(event, SHARED, shown, [{"prompt": words_of(line["prompt"])}])
        record = made.rank(question, START + t)
        assert isinstance(record, Rank)
        chosen = line["arms"][record.actions[record.choice]]
        made.reward(event, max(-1.0, min(1.0, chosen["reward"] - price * chosen["cost"])), START + t)
        quality.append(chosen["reward"])
        cost.append(chosen["cost"])
    counted_quality, counted_cost = quality[len(first) :], cost[len(first) :]
    return {"quality": float(np.mean(counted_quality)), "cost": float(np.mean(counted_cost))}


def main(folder: Path) -> None:
    """Play all prices and seeds, and write what came out."""
    first, counted = read_prompts(folder)
    result: dict[str, Any] = {
        "prompts": len(counted),
        "before": len(first),
        "seeds": SEEDS,
        "models": {},
        "ours": [],
    }
    for name in sorted(first[0]["arms"]):
        rows = [line["arms"][name] for line in counted]
        result["models"][name] = {
            what: float(np.mean([one[key] for one in rows]))
            for what, key in (("quality", "reward"), ("cost", "cost"))
        }
    for price in PRICES:
        runs = [play(first, counted, price, seed) for seed in range(SEEDS)]
        row = {what: float(np.mean([run[what] for run in runs])) for what in ("quality", "cost")}
        spread = float(np.std([run["quality"] for run in runs], ddof=1) / np.sqrt(SEEDS))
        best = max(result["models"].values(), key=lambda one: one["quality"] - price * one["cost"])
        ideal = [
            max(line["arms"].values(), key=lambda one: one["reward"] - price * one["cost"])
            for line in counted
        ]
        row |= {"price": price, "spread": spread, "payoff": row["quality"] - price * row["cost"]}
        row |= {"best_model": best["quality"] - price * best["cost"]}
        row |= {"ideal": float(np.mean([one["reward"] - price * one["cost"] for one in ideal]))}
        result["ours"].append(row)
        print(row, flush=True)
    (ROOT / "results" / "prompts.json").write_text(json.dumps(result, indent=1) + "\n")
    draw(result)


def draw(result: dict[str, Any]) -> None:
    """Draw quality over cost: ours, each model alone, and what the authors of the data published."""
    plt = import_module("matplotlib.pyplot")
    plt.style.use(ROOT / "docs" / "pictures" / "matplotlibrc")
    figure, axes = plt.subplots(layout="constrained")
    ours = [(row["cost"], row["quality"]) for row in result["ours"]]
    axes.plot(*zip(*sorted(ours), strict=True), "o-", label="coterie, one point per price")
    axes.plot(
        *zip(*PUBLISHED, strict=True),
        "s--",
        color="0.5",
        label="ParetoBandit, one point per budget (published)",
    )
    for name, one in result["models"].items():
        axes.plot(one["cost"], one["quality"], "x", color="black")
        place = (one["cost"], one["quality"] + 0.006)
        axes.annotate(f"always {name.split('/')[-1]}", place, ha="center")
    axes.set(
        xscale="log",
        xlabel="dollars per prompt",
        ylabel="judged quality",
        xlim=(8e-6, 6e-2),
        ylim=(0.78, 0.95),
    )
    axes.legend(loc="lower right")
    axes.set_title("Quality and cost of three models on 1,824 prompts")
    figure.savefig(ROOT / "docs" / "pictures" / "prompts.svg", metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
