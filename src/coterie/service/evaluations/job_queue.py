"""The service's evaluations: stored, run one at a time in a process of their own, and applied.

All services of a store know all of them; the one that has the lease runs them.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Self, final

import msgspec

from coterie.data.logs.rules import Config
from coterie.errors import CoterieError
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.coordination.lease import Lease
from coterie.service.core.policy_config import check_config
from coterie.service.evaluations import vowpal
from coterie.service.evaluations.job_process import JobProcess
from coterie.service.evaluations.jobs import (
    ALWAYS,
    NAMES,
    EvaluatedPolicy,
    Job,
    JobKind,
    WorkerInput,
    decode,
    encode,
)
from coterie.service.evaluations.search import with_policy
from coterie.service.problems import Problem
from coterie.service.repeating import repeat
from coterie.service.store_errors import PassingError, StoreError, keep_trying
from coterie.service.threads import in_thread

log = logging.getLogger("coterie.service")

MOST_POLICIES = 20  # of an evaluation, besides those in every one
AT_ONCE = 1  # running jobs; each has a process, and serving needs the other cores
LOOK_EVERY = 1.0  # seconds between two looks for what other services have stored
AUTOMATIC = 10  # finished automatic ones that are kept; the oldest is deleted


@final
class Evaluations:
    """All jobs. Its methods run in the event loop's thread; it waits for workers and the store in other threads."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self.jobs: dict[tuple[JobKind, str], Job] = {}
        self._thread = ThreadPoolExecutor(AT_ONCE, "evaluations")
        self._writer = ThreadPoolExecutor(1, "evaluations-store")  # writes go one after the other
        self._waiting = asyncio.Event()
        self._run: JobProcess | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._lease = Lease(coordinator.store, "evaluations", LOOK_EVERY)
        self._stored: dict[bytes, int] = {}  # the checksums of what was read last
        self._writes = self._written = 0  # changes that were begun and ended here

    async def start(self) -> None:
        """Read the stored jobs, and run those that are not finished."""
        await self.refresh()
        look = repeat(self.look, LOOK_EVERY, "reading the evaluations")
        self._tasks = [asyncio.create_task(self._work()), asyncio.create_task(look)]

    async def stop(self) -> None:
        """End the running job; the next start begins it again."""
        for task in self._tasks:
            task.cancel()
        if self._run is not None:
            self._run.end()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for pool in (self._thread, self._writer):  # they use the store, which is closed next
            await asyncio.to_thread(pool.shutdown)

    async def refresh(self) -> None:
        """Read the stored jobs, if they have changed, and end the running one if it was deleted."""
        store, writes = self.coordinator.store, self._writes
        sums = await in_thread(store.evaluation_sums, thread=self._writer)
        if sums == self._stored:
            return
        found = await in_thread(lambda: [*map(decode, store.evaluations())], thread=self._writer)
        if self._written != writes or self._writes != writes:
            return  # changed here meanwhile; the next look finds both
        found.sort(key=lambda job: job.created)
        self.jobs, self._stored = {job.key: job for job in found}, sums
        if self._run is not None and not self._knows(self._run.work.job):
            self._run.end()
        self._waiting.set()

    async def look(self) -> Self:
        """Read what other services have stored by now, and return itself; while the store is away, what is known."""
        with suppress(PassingError):  # the coordinator says so
            await self.refresh()
        return self

    def every(self, kind: JobKind) -> list[Job]:
        """Return all jobs of a kind, the newest first."""
        return [job for job in reversed(self.jobs.values()) if job.kind == kind]

    def find(self, kind: JobKind, name: str) -> Job:
        """Return a job, or answer 404."""
        found = self.jobs.get((kind, name))
        if found is None:
            raise Problem(404, "unknown_evaluation", f"{kind} {name!r} does not exist")
        return found

    async def make(self, job: Job) -> Job:
        """Store a job and queue it; if anything is wrong, nothing is stored."""
        await self.look()
        self._check(job)
        await asyncio.to_thread(check_policies, job.policies, self.coordinator.bandit.config)
        self._check(job)  # again: there may be other jobs by now
        self.jobs[job.key] = job  # at once, so that no other job takes the id
        try:
            await self._save(job)
        except CoterieError:
            self.jobs.pop(job.key, None)
            raise
        self._waiting.set()
        return job

    def _check(self, job: Job) -> None:
        if self.coordinator.refusing is not None:
            raise Problem(
                503, "not_accepting", f"no new work is accepted now: {self.coordinator.refusing}", 1
            )
        if job.key in self.jobs:
            raise Problem(
                409, "evaluation_exists", f"{job.kind} {job.id!r} exists; delete it, or use another id"
            )
        most = self.coordinator.settings.max_evaluations
        if len(self.jobs) >= most and not job.automatic:
            message = f"{len(self.jobs)} evaluations are kept, expected at most {most} (max-evaluations); delete one"
            raise Problem(409, "too_many_evaluations", message)
        if not job.start < job.end:
            raise Problem(
                422, "invalid_evaluation", "the end of its time is not after the start; give a later end"
            )

    async def delete(self, kind: JobKind, name: str) -> None:
        """Delete a job, and end it if it runs."""
        job = (await self.look()).find(kind, name)
        del self.jobs[job.key]  # at once, so that its process does not store it again
        try:
            await self._store(lambda: self.coordinator.store.drop_evaluation(_name(job)))
        except CoterieError:
            self.jobs[job.key] = job
            raise
        if self._run is not None and self._run.work.job.key == job.key:
            self._run.end()

    async def apply(self, name: str, policy: str) -> Job:
        """Apply one of the evaluated policies; it first learns the log."""
        job = (await self.look()).find("evaluation", name)
        if job.status != "done":
            raise Problem(
                409, "not_evaluated", f"evaluation {name!r} is {job.status}; apply one that is done"
            )
        one = job.policy(policy)
        if one is None and policy in ALWAYS:
            way = {
                "logged": "it is what was shown",
                "baseline": "for it set the mode to apprentice",
                "uniform": "for it set exploration to 1",
            }[policy]
            raise Problem(422, "not_applicable", f"{policy!r} is no policy that can be applied: {way}")
        if one is None:
            known = ", ".join(repr(known.name) for known in job.policies) or "none"
            message = f"evaluation {name!r} has no policy {policy!r} that can be applied; it has {known}"
            raise Problem(404, "unknown_policy", message)
        if one.policy == vowpal.NAME:
            way = "Personalizer's applyFromEvaluation applies what has a counterpart here"
            raise Problem(
                422,
                "not_applicable",
                f"{policy!r} is Vowpal Wabbit's, which is served with other features; {way}",
            )
        await self.coordinator.configure(with_policy(self.coordinator.bandit.config, one))
        log.info(
            f"the policy {one.policy} of evaluation {name!r} was applied, with {one.parameters or 'its defaults'}"
        )
        applied = msgspec.structs.replace(self.jobs.get(job.key, job), applied=policy)
        await self._change(applied)
        return applied

    async def _work(self) -> None:
        while True:
            self._waiting.clear()
            job = next(self._open(), None)
            if job is None or self.coordinator.refusing is not None:
                try:
                    async with asyncio.timeout(None if job is None else 1.0):
                        await self._waiting.wait()
                except TimeoutError:
                    pass
                continue
            try:
                async with self._lease:
                    await self.refresh()
                    job = next(self._open(), None)
                    if job is not None:
                        await self._do(job)
            except PassingError:
                await asyncio.sleep(LOOK_EVERY)  # it stays open
            except Exception as error:  # the next job may succeed
                log.exception("an evaluation failed")
                said = error.said if isinstance(error, StoreError) else str(error)
                if job is not None:
                    await self._close(job, "failed", said)

    def _open(self) -> Iterator[Job]:
        return (job for job in self.jobs.values() if job.open)

    async def _do(self, job: Job) -> None:
        settings, coordinator = self.coordinator.settings, self.coordinator
        work = WorkerInput(
            job, coordinator.bandit.config, settings.max_evaluated, settings.max_evaluated_bytes, os.getpid()
        )
        self._run = JobProcess(work, coordinator.store, settings.evaluation_within)
        await self._change(msgspec.structs.replace(job, status="running"))
        try:
            done = await asyncio.get_running_loop().run_in_executor(self._thread, self._run.do)
        finally:
            timed_out, self._run = self._run.timed_out, None
        if done is None or not self._knows(job):
            return  # deleted
        if done.result is None:
            await self._close(job, "timeout" if timed_out else "failed", done.error)
            return
        job = msgspec.structs.replace(job, status="done", result=done.result)
        if job.automatic:
            job = await self._optimise(job)
        await self._change(job)
        log.info(f"{job.kind} {job.id!r} is done: {done.result.get('verdict', 'the features have scores')}")

    async def _optimise(self, job: Job) -> Job:
        """Apply the policy that is better with confidence, if there is one, and log it."""
        better = (job.result or {}).get("better")
        one = job.policy(better) if better is not None else None
        if one is not None and not self._in_force(job):
            log.info("automatic optimisation: the policy was changed meanwhile; the new one stays")
            return msgspec.structs.replace(job, retained=True)
        if one is None:
            log.info("automatic optimisation: no policy is better with confidence; the current one stays")
            return msgspec.structs.replace(job, retained=True)
        try:
            await self.coordinator.configure(with_policy(self.coordinator.bandit.config, one))
        except CoterieError as error:
            log.error(f"automatic optimisation: {one.policy} {one.parameters} could not be applied: {error}")
            return msgspec.structs.replace(job, retained=True, error=str(error))
        words = (job.result or {})["words"]
        log.warning(f"automatic optimisation: {one.policy} {one.parameters} was applied. {words}")
        return msgspec.structs.replace(job, applied=one.name)

    async def _close(self, job: Job, status: str, error: str | None) -> None:
        if self._knows(job):
            closed = msgspec.structs.replace(self.jobs[job.key], status=status, error=error)
            await self._change(closed)

    def _knows(self, job: Job) -> bool:
        """Return whether a job still exists, and its id is not that of a newer one."""
        known = self.jobs.get(job.key)
        return known is not None and known.created == job.created

    def _in_force(self, job: Job) -> bool:
        """Return whether the policy that was current for the evaluation is still current."""
        one, config = job.policy("current"), self.coordinator.bandit.config
        return one is not None and (one.policy, one.parameters) == (config.policy, config.parameters)

    async def _change(self, job: Job) -> None:
        if self._knows(job):
            try:
                await self._save(job)  # before anybody sees it, because a stop may come at once
            except CoterieError as error:  # it runs again after a restart
                log.error(f"the result of evaluation {job.id!r} was not kept: {error}")
        if self._knows(job):
            self.jobs[job.key] = job

    async def _save(self, job: Job) -> None:
        body = encode(job)
        await self._store(lambda: self.coordinator.store.save_evaluation(_name(job), body))

    async def _store(self, work: Callable[[], None]) -> None:
        self._writes += 1
        try:
            await asyncio.get_running_loop().run_in_executor(self._writer, keep_trying, work)
        except StoreError as error:
            if not isinstance(error, PassingError):
                self.coordinator.availability.fail(error)
            raise Problem(503, "not_stored", f"the evaluation was not stored: {error.said}", 1) from error
        finally:
            self._written += 1

    async def drop_old_automatic(self) -> None:
        """Delete all finished automatic jobs but the newest."""
        every = [job for job in self.jobs.values() if job.automatic and not job.open]
        for job in every[:-AUTOMATIC]:
            await self.delete(job.kind, job.id)


def check_policies(policies: Sequence[EvaluatedPolicy], config: Config) -> None:
    """Raise if a policy cannot be served, or if two have the same name."""
    custom = sum(one.source == "custom" for one in policies)
    if custom > MOST_POLICIES:
        message = (
            f"{custom} policies, expected at most {MOST_POLICIES} besides those that every evaluation has"
        )
        raise Problem(422, "invalid_evaluation", message)
    seen: set[str] = set()
    for one in policies:
        if one.name in seen or (one.name in NAMES and one.source == "custom"):
            raise Problem(
                422, "same_policy_twice", f"two policies are called {one.name!r}; give each its own name"
            )
        seen.add(one.name)
        try:
            if one.policy == vowpal.NAME:
                vowpal.check_vowpal(one.parameters)
            else:
                check_config(with_policy(config, one))
        except CoterieError as error:
            raise Problem(422, "invalid_policy", f"policy {one.name!r}: {error}") from error


def _name(job: Job) -> str:
    return f"{job.kind} {job.id}"
