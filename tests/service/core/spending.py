"""Which model answers a prompt, within a budget: real prompts through the service's own decisions.

`python -m tests.service.core.spending` prints results/spending.json. It needs `coterie data get prompts`, and
COTERIE_DATA.
"""

import json
import os
import sys
from typing import NamedTuple

import numpy as np

from coterie.arrays import Floats
from coterie.data.logs.records import Rank
from coterie.data.logs.rules import Budget, Config
from coterie.data.published.classified import prompts
from coterie.service.core.bandit import Bandit
from coterie.service.core.question import Action, Question
from tests.service.helpers import START

BUDGETS = (2.3e-4, 6.5e-4)  # dollars per request
CUT, AFTER = 1800, 300  # requests until all models cost a tenth, and until the budget is spent again


class Play(NamedTuple):
    """What each request earned, cost and was priced at."""

    quality: Floats
    cost: Floats
    price: Floats


def play(amount: float, seed: int, cut: int | None = None, known: bool = True) -> Play:
    """Decide for all prompts in a random order. After `cut` requests all models cost a tenth.

    If costs are not `known` before, a request names the average cost of each model, and its reward the real one.
    """
    folder = os.environ.get("COTERIE_DATA")
    free, priced = (prompts(price=price, folder=folder).content for price in (0.0, 1.0))
    quality, costs = free.payoffs, free.payoffs - priced.payoffs
    made = Bandit()
    made.configure(Config(budget=Budget(amount)), START)
    rng = np.random.default_rng(seed)
    out = []
    for t, k in enumerate(rng.permutation(len(quality))):
        paid = costs[k] * (0.1 if cut is not None and t >= cut else 1.0)
        named = paid if known else costs.mean(axis=0)
        context = [{f"f{i}": float(x) for i, x in enumerate(free.contexts[k][:-1])}]
        question = Question(
            f"{seed}-{t}", f"visitor {t}", [*map(Action, free.items)], context, costs=tuple(named.tolist())
        )
        record = made.rank(question, START + 1000 * t)
        assert isinstance(record, Rank)
        made.reward(
            record.event,
            float(quality[k, record.choice]),
            START + 1000 * t,
            cost=None if known else float(paid[record.choice]),
        )
        made.drain()
        out.append((quality[k, record.choice], paid[record.choice], record.price))
    return Play(*np.array(out).T)


def main() -> None:
    seeds = range(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
    content = prompts(price=0.0, folder=os.environ.get("COTERIE_DATA")).content
    costs = content.payoffs - prompts(price=1.0, folder=os.environ.get("COTERIE_DATA")).content.payoffs
    rows, cheaper = [], []
    for amount in BUDGETS:
        for known in (True, False):
            plays = [play(amount, seed, known=known) for seed in seeds]
            half = len(plays[0].cost) // 2
            spent = [one.cost[half:].mean() / amount for one in plays]
            quality = float(np.mean([one.quality[half:].mean() for one in plays]))
            rows.append({"budget": amount, "known": known, "spent": spent, "quality": quality})
        plays = [play(amount, seed, cut=CUT) for seed in seeds]
        cheaper.append(
            {"budget": amount, "spent": [one.cost[CUT + AFTER :].mean() / amount for one in plays]}
        )
    always = {
        name: {"quality": float(content.payoffs[:, k].mean()), "cost": float(costs[:, k].mean())}
        for k, name in enumerate(content.items)
    }
    found = {"runs": len(seeds), "prompts": len(costs), "always": always, "rows": rows, "cheaper": cheaper}
    print(json.dumps({**found, "after": AFTER}, indent=1))


if __name__ == "__main__":
    main()
