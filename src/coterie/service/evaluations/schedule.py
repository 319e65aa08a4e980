"""Automatic optimisation: evaluates on a schedule; a policy that is better with confidence is applied."""

import asyncio
import logging
from typing import Any, NamedTuple

from coterie.service.coordination.coordinator import Coordinator
from coterie.service.coordination.rules import OPTIMISATION
from coterie.service.durations import format_duration, parse_duration
from coterie.service.evaluations.job_queue import Evaluations
from coterie.service.evaluations.jobs import Job, milliseconds, moment
from coterie.service.evaluations.search import policies_of
from coterie.service.settings import Settings
from coterie.service.threads import in_thread

log = logging.getLogger("coterie.service")

LOOK_EVERY = 30.0  # seconds
DAY = 86_400.0
ENABLED, FREQUENCY, START = OPTIMISATION


class Schedule(NamedTuple):
    """When to optimise."""

    every: float  # milliseconds
    first: int  # not before this time


def defaults(settings: Settings) -> dict[str, Any]:
    """Return the schedule of the settings, in the fields of Personalizer's configuration."""
    days = settings.optimise_days
    return {ENABLED: days > 0, FREQUENCY: format_duration((days or 7) * DAY)}


def schedule_of(coordinator: Coordinator) -> Schedule | None:
    """Return when to optimise, by Personalizer's configuration or else by the settings; None for never."""
    fields = defaults(coordinator.settings) | coordinator.bandit.contract
    if not fields[ENABLED]:
        return None
    start = fields.get(START)
    every = parse_duration(fields[FREQUENCY]) * 1000
    return Schedule(every, 0 if start is None else milliseconds(start, START))


def due(coordinator: Coordinator, evaluations: Evaluations, oldest: int | None) -> bool:
    """Return whether enough time has passed since the last optimisation, or since the log began."""
    schedule = schedule_of(coordinator)
    if schedule is None or oldest is None or coordinator.refusing is not None:
        return False
    made = [job.created for job in evaluations.every("evaluation") if job.automatic]
    now = coordinator.clock()
    return now >= schedule.first and now - max([oldest, *made]) >= schedule.every


def automatic(coordinator: Coordinator) -> Job:
    """Return the job to start now, over the whole log."""
    now = coordinator.clock()
    policies = policies_of([], True, coordinator.bandit.config, coordinator.engine)
    name = f"automatic {moment(now)}"
    return Job(name, "evaluation", name, 0, now + 1, now, policies, automatic=True)


async def optimise_if_due(coordinator: Coordinator, evaluations: Evaluations) -> Job | None:
    """Start an automatic optimisation if one is due, and return its job."""
    if schedule_of(coordinator) is None:
        return None
    async with coordinator.sequencer.lease:  # one service starts it
        await evaluations.refresh()
        if not due(coordinator, evaluations, await in_thread(coordinator.oldest)):
            return None
        job = await asyncio.to_thread(automatic, coordinator)
        await evaluations.make(job)
    await evaluations.drop_old_automatic()
    log.info(f"automatic optimisation: evaluates {len(job.policies)} policies")
    return job
