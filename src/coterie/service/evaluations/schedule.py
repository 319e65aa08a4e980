"""Automatic optimisation: evaluates on a schedule, and lets the evaluations apply what is better with confidence."""

import asyncio
import logging
from typing import NamedTuple

from coterie.errors import CoterieError
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.coordination.rules import OPTIMISATION
from coterie.service.durations import parse_duration
from coterie.service.evaluations.jobs import Job, milliseconds, moment
from coterie.service.evaluations.keeper import Evaluations
from coterie.service.evaluations.routes import policies_of

log = logging.getLogger("coterie.service")

LOOK_EVERY = 30.0  # seconds
DAY = 86_400.0
ENABLED, FREQUENCY, START = OPTIMISATION


class Plan(NamedTuple):
    """When to optimise."""

    every: float  # milliseconds
    first: int  # not before this time


def plan(coordinator: Coordinator) -> Plan | None:
    """Return when to optimise: as Personalizer's configuration said last, else by the settings; None if never."""
    contract = coordinator.bandit.contract
    by_settings = coordinator.settings.optimise_days * DAY * 1000
    if not contract.get(ENABLED, by_settings > 0):
        return None
    every = (
        parse_duration(contract[FREQUENCY]) * 1000 if FREQUENCY in contract else by_settings or 7 * DAY * 1000
    )
    start = contract.get(START)
    return Plan(every, 0 if start is None else milliseconds(start, START))


def due(coordinator: Coordinator, evaluations: Evaluations, oldest: int | None) -> bool:
    """Tell whether it is time: since the last one, or at first since the log began."""
    planned = plan(coordinator)
    if planned is None or oldest is None or coordinator.refusing is not None:
        return False
    made = [job.created for job in evaluations.every("evaluation") if job.automatic]
    now = coordinator.clock()
    return now >= planned.first and now - max([oldest, *made]) >= planned.every


def automatic(coordinator: Coordinator) -> Job:
    """Return the evaluation to make now, of the whole log."""
    now = coordinator.clock()
    policies = policies_of([], True, coordinator.bandit.config, coordinator.shards)
    name = f"automatic {moment(now)}"
    return Job(name, "evaluation", name, 0, now + 1, now, policies, automatic=True)


async def keep_optimising(coordinator: Coordinator, evaluations: Evaluations) -> None:
    """Look now and then whether it is time."""
    while True:
        await asyncio.sleep(LOOK_EVERY)
        try:
            await optimise_if_due(coordinator, evaluations)
        except CoterieError as error:
            log.error(f"automatic optimisation could not begin: {error}")


async def optimise_if_due(coordinator: Coordinator, evaluations: Evaluations) -> Job | None:
    """Begin an automatic optimisation if it is time for one, and return it."""
    if plan(coordinator) is None or not due(
        coordinator, evaluations, await asyncio.to_thread(coordinator.oldest)
    ):
        return None
    job = await asyncio.to_thread(automatic, coordinator)
    await evaluations.make(job)
    await evaluations.drop_old_automatic()
    log.info(f"automatic optimisation: evaluates {len(job.policies)} policies")
    return job
