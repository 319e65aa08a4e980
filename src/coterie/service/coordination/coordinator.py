"""The coordinator: takes a request, lets the bandit decide, and answers when the log has it.

Both HTTP APIs, the native one and Personalizer's, and the page call it and nothing below it.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from coterie.data.logs.records import Observe, Rank, ShownAction, encode, request_of
from coterie.data.logs.rules import Config
from coterie.errors import CoterieError, FileError
from coterie.service.clock import Clock, SteadyClock
from coterie.service.coordination import relearning
from coterie.service.coordination.availability import Availability
from coterie.service.coordination.background import Background
from coterie.service.coordination.client_decisions import Decided, keep_all
from coterie.service.coordination.rules import first_rules
from coterie.service.coordination.sequencer import STARTING, Sequencer
from coterie.service.coordination.slots import next_slot
from coterie.service.core.bandit import Bandit
from coterie.service.core.events import Event, Outcome
from coterie.service.core.question import Question
from coterie.service.core.workload import DECIDING, long_to_decide, long_to_learn
from coterie.service.files.model_file import import_model
from coterie.service.log.damage import readable
from coterie.service.log.store import Store
from coterie.service.logs import log
from coterie.service.problems import Problem
from coterie.service.settings import Settings
from coterie.service.snapshots.recovery import recover
from coterie.service.store_errors import StoreError
from coterie.service.threads import in_thread

T = TypeVar("T")
Check = Callable[[], None]  # raises what is wrong
STOPPING = "stopping"
BEHIND = 5.0  # seconds; a service whose state is older is not ready


class Coordinator:
    """The one place where requests meet the bandit; lives in the event loop's thread."""

    def __init__(
        self, settings: Settings, store: Store, clock: Clock | None = None, engine: Any = None
    ) -> None:
        self.settings = settings
        self.store = store
        self.clock = clock or SteadyClock(store.time)
        self.engine = engine
        self.sequencer = Sequencer(store, self.clock, engine, settings.max_queue)
        self.availability = Availability(self.sequencer)
        self.background = Background(self.sequencer, settings)
        self.draining = False  # whether it is about to stop, and requests should go to other services
        self.preparing = False  # whether the application still prepares what the first request needs
        self.failure: Exception | None = None  # why the start failed, if it did
        self.saved = False  # whether a stop has left all that was acknowledged in the log and a snapshot
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def bandit(self) -> Bandit:
        """The bandit: another one after the service was stopped for so long that the log has moved on."""
        return self.sequencer.bandit

    @property
    def refusing(self) -> str | None:
        """Why writes are refused, if they are."""
        if self.preparing:
            return STARTING
        return self.sequencer.refusing

    @property
    def not_ready(self) -> str | None:
        """Why requests should go to another service, if they should; this one may still answer."""
        if self.refusing is not None or self.draining:
            return self.refusing or STOPPING
        seconds = self.sequencer.behind
        return f"{seconds:.1f} s behind the log" if seconds > BEHIND else None

    def check_open(self) -> None:
        """Raise while no request is answered, during the start."""
        if self.refusing == STARTING:
            progress = self.availability.progress
            read = f"{progress.read:,} of {progress.of:,} records of the log are read"
            raise Problem(503, "starting", f"the service is starting: {read}; try again", 1)

    # Start and stop.

    async def start(self) -> None:
        """Recover, then accept."""
        await self.availability.begin(self._begin)

    async def _begin(self) -> None:
        sequencer, store = self.sequencer, self.store
        read = partial(recover, store, engine=self.engine, progress=self.availability.progress)
        sequencer.take(await in_thread(read))
        await sequencer.follow()
        self.background.snapshot_at = await in_thread(store.newest)
        await self.background.follow_clock()
        sequencer.refusing = None
        await self.configure(*first_rules(self.settings, self.bandit, self.engine))
        await sequencer.scrub()
        self._tasks += self.background.start()

    async def stop(self) -> None:
        """Refuse new work, finish what was accepted, snapshot, and release the store; `saved` says if that worked."""
        sequencer, healing = self.sequencer, self.availability.healing
        unused = self.refusing == STARTING  # then nothing was acknowledged here
        sequencer.refusing = STOPPING
        self.availability.progress.stop()
        tasks = [*self._tasks, *([healing] if healing else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # one may be writing a snapshot
        try:
            await sequencer.close()
            if not (unused or self.availability.ending):
                async with asyncio.timeout(self.settings.stop_within):  # another service may have the lease
                    await sequencer.snapshot()
            self.saved = not self.availability.ending
        except (CoterieError, TimeoutError) as error:  # what was acknowledged is in the log
            log.error(f"no snapshot was written at the stop, so the next start reads the log: {error}")
        finally:
            sequencer.turns.close()
            self.store.close()

    # Requests that write.

    async def rank(self, question: Question, check: Check = lambda: None) -> Rank:
        """Decide; a retry of the same event gets the same answer. `check` may refuse when its turn comes."""
        sequencer = self.sequencer
        before = await self.decided(question.event) if not question.fresh else None
        if before is not None:
            question.check_retry(before)
            return before
        sequencer.accept()
        bandit, at = sequencer.bandit, self.clock()
        made: Rank | None = None
        gone: int | None = None
        if question.event not in bandit.events and not bandit.must_wait(question):
            # While the batch before is written.
            long = long_to_decide(bandit, question.work, len(question.actions))
            made = await sequencer.do(partial(_checked, check, partial(bandit.decide, question, at)), long)

        def keep() -> Rank | Event:
            if made is None:
                check()
            return sequencer.bandit.rank(question, self.clock(), made, gone)

        while True:
            found = (await sequencer.write(keep, long=made is None, alone=False)).value
            if isinstance(found, Rank):
                return found
            logged, gone = await self._logged(found), found.position
            if logged is not None:
                question.check_retry(logged)
                return logged

    async def what_if(self, question: Question) -> Rank:
        """Return what would be decided now; nothing is recorded."""
        return await self.look(lambda: self.bandit.what_if(question)[0])

    async def rank_slots(self, questions: Sequence[Question], check: Check = lambda: None) -> list[Rank]:
        """Decide the slots of one page, durable together; an action chosen for one is not open to the next."""
        work = sum(DECIDING + question.work for question in questions)
        long = long_to_decide(self.bandit, work, sum(len(question.actions) for question in questions))
        if not questions[0].fresh and await self.decided(questions[0].event) is not None:
            return await self._slots_again(questions)
        gone: int | None = None
        while True:
            plan = partial(self._rank_slots, questions, check, gone)
            found = (await self.sequencer.write(plan, long, alone=False)).value
            if found is not None:
                return found
            first = await self.event(questions[0].event)
            if await self._logged(first) is not None:
                return await self._slots_again(questions)
            gone = first.position

    def _rank_slots(
        self, questions: Sequence[Question], check: Check, gone: int | None = None
    ) -> list[Rank] | None:
        """Decide all slots, then keep all, so that either all are refused or none. Returns None for a retry."""
        check()
        known = self.bandit.events.get(questions[0].event)
        if known is not None and known.position != gone:
            return None
        found: list[Rank] = []
        at = self.clock()
        for _ in questions:
            found.append(self.bandit.decide(next_slot(questions, found), at))
        return self.bandit.keep_all(list(zip(questions, found, strict=True)), at)

    async def _slots_again(self, questions: Sequence[Question]) -> list[Rank]:
        """Return the decisions that were made for these slots before."""
        found: list[Rank] = []
        for question in questions:
            decided = await self.decision(await self.event(question.event))
            next_slot(questions, found).check_retry(decided)
            found.append(decided)
        return found

    async def reward(
        self,
        event: str,
        value: float | None,
        name: str | None = None,
        parts: Mapping[str, float] | None = None,
        cost: float | None = None,
    ) -> Outcome:
        """Learn a reward, and return its outcome once that is durable."""
        found: Outcome = "unknown_event"
        for last in (False, True):
            done = await self.sequencer.write(
                lambda: self.bandit.reward(event, value, self.clock(), name, parts, cost),
                long_to_learn(self.bandit, event),
                alone=False,
            )
            found = done.value if done.value == "unknown_event" else done.applied
            if last or found != "unknown_event":
                break
            await self.news()  # the decision may be one of another service
        return found

    async def keep_decisions(self, decided: Sequence[Decided]) -> int:
        """Keep decisions that clients made, all or none, and return how many were new."""
        return await self._write(lambda: keep_all(self.bandit, decided, self.clock()), long=True)

    async def activate(self, event: str) -> bool:
        """Say that a deferred decision was shown; returns whether the event is known."""
        long = event not in self.bandit.events  # then the log is read
        for last in (False, True):
            plan = partial(self.bandit.activate, event, self.clock())
            if (await self.sequencer.write(plan, long, alone=False)).value:
                return True
            if not last:
                await self.news()
        return False

    async def forget(self, user: str) -> bool:
        """Forget a user: in the model at once, in the log before this returns. False if unknown."""
        forget = partial(self._write, lambda: self.bandit.forget(user, self.clock()), long=True)
        number = await forget()
        if number is None:
            await self.news()
            number = await forget()
        try:
            await self.sequencer.scrub()  # also users whom an earlier request could not finish forgetting
        except StoreError as error:
            message = f"the user is forgotten, but traces are left: {error.said}; ask again"
            raise Problem(503, "not_erased", message, 1) from error
        return number is not None

    async def configure(self, config: Config, contract: Mapping[str, Any] | None = None) -> None:
        """Change the rules from here on; another policy first learns what the log holds."""
        await relearning.configure(self.sequencer, config, contract)

    async def observe(self, rows: Sequence[tuple[str, ShownAction, float]]) -> None:
        """Learn payoffs that were not earned here: (user, shown action, value)."""

        def learn() -> None:
            bandit = self.bandit
            bandit.policies.check_shown(action for _, action, _ in rows)
            for _, action, value in rows:
                encode(Observe(0, 0, value, action))  # raises before anything has changed
            for user, action, value in rows:
                bandit.observe(user, action, value, self.clock())

        await self._write(learn, long=True)

    async def befriend(self, user: str, friends: Mapping[str, float]) -> None:
        """Give a user these friends, with the weights of the edges, and no others."""
        await self._write(lambda: self.bandit.befriend(user, friends, self.clock()), long=True)

    async def reset(self) -> None:
        """Empty the model; the log stays."""
        await self._write(lambda: self.bandit.reset(self.clock()))

    async def import_model(self, content: bytes) -> None:
        """Replace the model by that of a file; nothing changes if anything is wrong with it."""
        await self._write(lambda: import_model(content, self.bandit, self.clock()), long=True)

    async def delete_log(self) -> None:
        """Keep what was learned as a snapshot, and remove the log before it."""
        self.sequencer.accept()
        async with self.sequencer.lease:
            position = self.bandit.position
            await self.sequencer.save(alone=True)
            await asyncio.to_thread(self.store.compact, position)

    async def snapshot(self, alone: bool = False) -> None:
        """Keep the state as it is now, so that a start need not replay the whole log."""
        await self.sequencer.snapshot(alone)

    async def _write(self, work: Callable[[], T], long: bool = False) -> T:
        """Change the bandit, and return once that is durable."""
        return (await self.sequencer.write(work, long)).value

    # Requests that read.

    async def news(self) -> None:
        """Apply all that other services have written before now."""
        try:
            await self.sequencer.follow()
        except (FileError, StoreError) as error:
            message = "the log cannot be read now, so it is not known what other services have written"
            raise Problem(503, "not_readable", message, 1) from error

    async def look(self, work: Callable[[], T]) -> T:
        """Return what `work` reads from the bandit, beside the event loop, while nothing changes it."""
        return await self.sequencer.do(work, long=True)

    def oldest(self) -> int | None:
        """Return the time of the oldest kept record, in milliseconds; reads the store."""
        for batch in readable(self.store):
            return batch.records()[0].at
        return None

    async def decided(self, event: str) -> Rank | None:
        """Return the decision of an event that is no longer in memory, if the log has it."""
        self.sequencer.accept()
        if event in self.bandit.events:
            return None
        if not self.store.may_have(event):
            return None
        try:
            found = await in_thread(self.sequencer.log.find, event)
        except (FileError, StoreError) as error:
            said = error.said if isinstance(error, StoreError) else str(error)
            message = f"it cannot be found out whether event {event!r} was decided before: {said}"
            raise Problem(503, "not_readable", message, 1) from error
        return None if found is None or found.user in self.bandit.forgotten else found

    async def knows(self, event: str) -> bool:
        """Return whether an event was decided."""
        return event in self.bandit.events or await self.decided(event) is not None

    async def event(self, event: str) -> Event:
        """Return an event, from memory or from the log."""
        found = self.bandit.events.get(event) or await self.look(lambda: self.bandit.find(event))
        if found is None:
            await self.news()
            found = await self.look(lambda: self.bandit.find(event))
        if found is None:
            raise Problem(
                404, "unknown_event", f"event {request_of(event)!r} is not known, or was too long ago"
            )
        return found

    async def decision(self, event: Event) -> Rank:
        """Return the decision of an event, from the log."""
        record = await self._logged(event)
        if record is None:
            raise Problem(404, "unknown_event", f"event {request_of(event.id)!r} is no longer in the log")
        return record

    async def _logged(self, event: Event) -> Rank | None:
        """Return the decision of an event; None if the log no longer has it."""
        record = await asyncio.to_thread(self.sequencer.read, event.position)
        return record if isinstance(record, Rank) else None


def _checked(check: Check, work: Callable[[], T]) -> T:
    """Return what `work` returns, unless `check` raises."""
    check()
    return work()
