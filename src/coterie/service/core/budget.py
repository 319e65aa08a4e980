"""Budgets: what decisions cost, and the price of cost that keeps them within a budget.

The choice is the best payoff − price · cost. The price moves after each decision, in steps that are proportional to
how much more, or less, was spent than the decision's share of the budget: as a multiplier of Lagrange that is learned
by gradient steps. A step is measured in standard deviations of the payoffs per usual share, so units of money and of
payoffs do not matter. If less is worth spending than the budget allows, the price is 0.

A budget per decision has the same share for each decision. What was spent above or below it is made up for later,
but no more than SAVED shares of what was saved. The share of a budget per day (of UTC), or of a total over so many
days, is what is left of it, divided by the decisions that the present rate brings until its end. The usual share is
that of the whole budget at the average rate, so that a step stays small when nearly nothing is left. If even the
cheapest action that costs anything costs more, steps are measured by it, and the price stays below what makes that
action lose for sure: otherwise a minute of many requests would raise the price so far that it takes days to come
down. Actions that
cost more than what is left are left out before the policy is asked; if no action is left, the cheapest one stays.
"""

import math
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from coterie.data.logs.rules import Budget
from coterie.service.core.question import Question

DAY = 86_400_000  # milliseconds
RATE = 0.05  # of a step of the price
MOST = 10.0  # usual shares above or below its share that one decision counts as, in a step
HIGHEST = 10.0  # standard deviations of payoffs that the cheapest action that costs anything loses at most
FEW = 10  # decisions after which their rate is known
SAVED = 100.0  # shares
AT_ONCE = (
    10_000  # decisions that may be made ahead at once; what is left for fewer is spent one after the other
)
RECENT = 100  # decisions that the rate of decisions is averaged over
START, WEIGHT = 0.25, 4.0  # the standard deviation of payoffs before there are any, and as how many it counts


class Spending(Struct):
    """What was spent under a budget, and the price that follows from it. A function of the log."""

    since: int  # when the budget came into force, milliseconds
    decisions: int = 0
    spent: float = 0.0
    price: float = 0.0  # payoffs per unit of cost
    over: float = 0.0  # spent above the budget, in shares; for a budget per decision
    period: int = 0  # when the present day began
    used: float = 0.0  # in the present day
    first: int = 0  # when the first decision was made
    at: int = 0  # of the last decision
    gap: float = 0.0  # milliseconds between two decisions, a recent average
    payoffs: int = 0
    mean: float = 0.0  # of payoffs
    squares: float = 0.0  # Σ (payoff − mean)²
    least: float = 0.0  # the least cost above 0 of an action of the last decision

    def left(self, budget: Budget, at: int) -> float:
        """Return what may still be spent in the present period."""
        if budget.per == "decision":
            return math.inf
        used = self.spent if budget.per == "total" else self.used if self.period == _day(at) else 0.0
        return max(0.0, budget.amount - used)

    def share(self, budget: Budget, at: int) -> float:
        """Return what a decision may cost on average from now on."""
        if budget.per == "decision":
            return budget.amount
        end = self.since + math.ceil(budget.days * DAY) if budget.per == "total" else _day(at) + DAY
        decisions = max(1.0, (end - at) / max(self.gap, 1.0))
        return self.left(budget, at) / decisions

    def usual_share(self, budget: Budget) -> float:
        """Return the share of a decision at the average rate so far; 0 while that is not known."""
        if budget.per == "decision":
            return budget.amount
        if self.decisions < FEW:
            return 0.0
        gap = max(1.0, (self.at - self.first) / (self.decisions - 1))
        return budget.amount * gap / (DAY * (budget.days if budget.per == "total" else 1.0))

    def add(
        self, cost: float, at: int, budget: Budget, priced: bool = True, costs: Sequence[float] = ()
    ) -> None:
        """Count a decision between actions with these costs.

        The price moves if the policy made it: no price changes what the baseline costs.
        """
        share = self.share(budget, at)
        self.least = min((one for one in costs if one > 0), default=self.least)
        if self.decisions:
            self.gap += (max(0, at - self.at) - self.gap) / min(self.decisions, RECENT)
        else:
            self.first = at
        self.at = at
        self.decisions += 1
        self._spend(cost, at)
        if priced:
            self._move(cost - share, budget)

    def correct(self, more: float, at: int, budget: Budget) -> None:
        """Count what a decision cost more than it said."""
        more = max(more, -self.spent)
        self._spend(more, at)
        self._move(more, budget)

    def learn(self, payoff: float) -> None:
        """Count a payoff, for the unit of the price."""
        self.payoffs += 1
        off = payoff - self.mean
        self.mean += off / self.payoffs
        self.squares += off * (payoff - self.mean)

    def _spend(self, cost: float, at: int) -> None:
        self.spent += cost
        if self.period != _day(at):
            self.period, self.used = _day(at), 0.0
        self.used = max(0.0, self.used + cost)

    def _move(self, more: float, budget: Budget) -> None:
        """Move the price after a decision that cost `more` than its share."""
        share = self.usual_share(budget)
        if share == 0:
            return
        step = min(MOST, max(-MOST, more / share))
        if budget.per == "decision":
            self.over = max(-SAVED, self.over + more / share)
            step += min(1.0, self.over / SAVED)
        spread = math.sqrt((self.squares + WEIGHT * START**2) / (self.payoffs + WEIGHT))
        unit = spread / max(share, self.least)
        self.price = max(0.0, self.price + RATE * step * unit)
        if self.least:
            self.price = min(self.price, HIGHEST * spread / self.least)


def is_tight(question: Question, spending: Spending, at: int, budget: Budget) -> bool:
    """Return whether decisions that are made at the same moment could spend more than is left together."""
    return spending.left(budget, at) < AT_ONCE * max(question.costs, default=0.0)


def with_budget(
    question: Question, spending: Spending, at: int, budget: Budget, planned: float = 0.0
) -> Question:
    """Return the question with the price of cost, and without the actions that cost more than is left.

    `planned` is the cost of decisions that are made, but not yet counted.
    """
    if not question.costs:
        return question
    asked = zip(question.actions, question.costs, strict=True)
    costs = {action.id: cost for action, cost in asked if action.id not in question.excluded}
    left, share = spending.left(budget, at) - planned, spending.share(budget, at)
    unaffordable = {name for name, cost in costs.items() if cost > left}
    if costs and len(unaffordable) == len(costs):
        unaffordable.discard(min(costs, key=lambda name: costs[name]))
    return msgspec.structs.replace(
        question,
        excluded=question.excluded | unaffordable if unaffordable else question.excluded,
        unaffordable=frozenset(unaffordable),
        price=spending.price,
        share=share,
    )


def _day(at: int) -> int:
    """Return when the day began."""
    return at - at % DAY
