"""What was decided and earned, and the latest decisions."""

import asyncio
from typing import Annotated, Any

from litestar import get
from litestar.datastructures import State
from litestar.params import QueryParameter
from msgspec import Struct

from coterie.service.coordination.coordinator import Coordinator
from coterie.service.core.bandit import Bandit
from coterie.service.http.access import READ
from coterie.service.http.routes.latest import LatestDecision, Limit, latest_answer, latest_of
from coterie.service.reports import curve
from coterie.service.reports.curve import Point
from coterie.service.reports.exploring import warnings
from coterie.service.reports.latency import Latency, latency
from coterie.service.reports.latest import Stretch, stretches
from coterie.service.reports.parts import GuardrailReport, PartReport, guardrail_reports, part_reports
from coterie.service.trial.report import TrialReport, report


class Spent(Struct, frozen=True, rename="camel"):
    """What was spent of the budget since it is in force."""

    amount: float
    per: str
    spent: float
    left: float | None  # of the day or of the total
    decisions: int
    price: float  # of cost, in payoffs


class Statistics(Struct, frozen=True, rename="camel"):
    """What has been decided and earned."""

    at: int
    policy: str
    mode: str
    exploration: float
    users: int
    items: int  # known by their ids, or in the latest decisions
    waiting: int
    removed_early: int  # events removed before their wait had ended, because there was no room
    log_records: int
    behind: float  # seconds since the state was last known to be what the log says
    total: Point
    curve: list[Point]
    trial: TrialReport | None  # while there is a holdback or a challenger
    budget: Spent | None
    parts: list[PartReport]  # of the rewards
    guardrails: list[GuardrailReport]
    # That records of the log are damaged, that a guardrail is broken, that the loop stopped exploring, or that events
    # were removed early.
    warning: str | None
    best_guess_changes: float | None  # the share of the last hour's best guesses that would be others now
    rank_latency: Latency
    commit_latency: Latency


class Size(Struct, frozen=True, rename="camel"):
    """How many of the latest decisions had a neighbourhood of this size."""

    least: int
    most: int
    decisions: int


class Decisions(Struct, frozen=True, rename="camel"):
    """The latest decisions, and the neighbourhood sizes of the latest two thousand."""

    decisions: list[LatestDecision]
    sizes: list[Size]
    median: int | None
    learning: list[Stretch]  # what they earned, in stretches of equal length


Minutes = Annotated[int, QueryParameter(ge=1, le=10_080)]


@get("/v1/statistics", opt=READ, operation_id="statistics")
async def statistics(state: State, minutes: Minutes = 60) -> Statistics:
    """Show what was decided and earned, against the baseline and against a uniform choice."""
    coordinator: Coordinator = state.coordinator
    bandit = coordinator.bandit
    at = max(coordinator.clock(), bandit.now)
    known, latest = bandit.policies.known_items.keys(), await latest_of(state)
    families = list(state.metrics.registry.collect())
    return Statistics(
        at=at,
        policy=bandit.config.policy,
        mode=bandit.config.mode,
        exploration=bandit.config.exploration,
        users=len(bandit.users),
        items=len(known | {made.action.id for made in latest}),
        waiting=bandit.remembered.open,
        removed_early=bandit.remembered.removed,
        log_records=bandit.position,
        behind=coordinator.sequencer.behind,
        total=curve.point(bandit.statistics.total),
        trial=report(bandit.trial, bandit.config, bandit.now),
        budget=spent(bandit, at),
        parts=part_reports(bandit.guards, bandit.config),
        guardrails=guardrail_reports(bandit.guards),
        warning=" · ".join(filter(None, (coordinator.background.damage, *warnings(bandit)))) or None,
        best_guess_changes=coordinator.background.guess_changes,
        curve=await asyncio.to_thread(curve.curve, list(bandit.statistics.minutes), at, minutes),
        rank_latency=latency(families, "coterie_request_seconds", "/rank"),
        commit_latency=latency(families, "coterie_commit_seconds"),
    )


def spent(bandit: Bandit, at: int) -> Spent | None:
    """Return what was spent of the budget, if there is one."""
    spending, budget = bandit.spending, bandit.config.budget
    if spending is None or budget is None:
        return None
    left = None if budget.per == "decision" else spending.left(budget, at - bandit.jumped)
    return Spent(budget.amount, budget.per, spending.spent, left, spending.decisions, spending.price)


@get("/v1/decisions", opt=READ, operation_id="latest_decisions")
async def decisions(state: State, limit: Limit = 20) -> Decisions:
    """Show the latest decisions and how many users they rested on."""
    latest = await latest_of(state)
    bandit = state.coordinator.bandit
    members = sorted(made.members for made in latest if made.members is not None)
    sizes, least = [], 1
    while members and least <= members[-1]:
        most = 2 * least - 1
        sizes.append(Size(least, most, sum(least <= size <= most for size in members)))
        least *= 2
    shown = [latest_answer(made, bandit) for made in latest[:limit] if made.user in bandit.ids]
    learning = await asyncio.to_thread(stretches, latest, bandit)
    return Decisions(shown, sizes, members[len(members) // 2] if members else None, learning)


ROUTES: list[Any] = [statistics, decisions]
