"""Which model answers a prompt, within a budget: real prompts through the service's own decisions.

`python -m tests.service.core.spending` prints the figures of docs/service.md. It needs the prompts:
`coterie data get prompts`, and COTERIE_DATA.
"""

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
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    print("budget      costs    spent, second half   quality, second half / all   spent, all")
    for amount in BUDGETS:
        for known in (True, False):
            plays = [play(amount, seed, known=known) for seed in range(runs)]
            half = len(plays[0].cost) // 2
            spent = [one.cost[half:].mean() / amount for one in plays]
            print(
                f"{amount:.1e}  {'known' if known else 'after'}   {np.mean(spent):.3f} "
                f"({min(spent):.3f} to {max(spent):.3f})   "
                f"{np.mean([one.quality[half:].mean() for one in plays]):.3f} / "
                f"{np.mean([one.quality.mean() for one in plays]):.3f}   "
                f"{np.mean([one.cost.mean() for one in plays]) / amount:.3f}"
            )
    for amount in BUDGETS:
        plays = [play(amount, seed, cut=1800) for seed in range(runs)]
        spent = [one.cost[2100:].mean() / amount for one in plays]
        print(
            f"{amount:.1e}, a tenth of the costs from request 1,800: spent from 2,100 on {np.round(spent, 3)}"
        )


if __name__ == "__main__":
    main()
