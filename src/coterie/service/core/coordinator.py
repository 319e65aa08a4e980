"""The coordinator: takes a request, lets the engine decide at once, and answers when the log is durable.

Both HTTP dialects, the native and the compatible one, and the page talk to it and to nothing below it.
"""

import asyncio
import gc
import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain, repeat
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec import Struct

from coterie.errors import ContextError, CoterieError, FileError, UnavailableError
from coterie.service.clock import JUMP, Clock, SteadyClock
from coterie.service.core.elsewhere import Decided, keep_all
from coterie.service.core.engine import (
    DECIDING,
    Answer,
    Engine,
    Paid,
    Question,
    check_config,
    models_to_learn,
    probability,
    same_model,
)
from coterie.service.core.events import Event, Outcome
from coterie.service.core.microbatch import Together
from coterie.service.core.records import Rank, Record, Tick, encode, pack
from coterie.service.core.slots import narrow
from coterie.service.core.standby import WAITING, Standby
from coterie.service.core.turns import Turns
from coterie.service.exchange.model_file import import_model
from coterie.service.figures import exploring
from coterie.service.log.committer import Committer
from coterie.service.log.erasure import scrub
from coterie.service.log.recovery import relearn
from coterie.service.log.retention import let_go
from coterie.service.log.store import Append, BrokenError, FullError, LostError, Store, StoreError
from coterie.service.problems import Problem
from coterie.service.settings import Config, Settings, starting_config
from coterie.service.snapshots.saving import beside, save

log = logging.getLogger("coterie.service")

T = TypeVar("T")
Check = Callable[[], None]  # raises what is wrong
FEW = 100  # records that an engine may catch up with in one go
OWN_EVERY = 1.0  # seconds between two looks whether the store is still ours
PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)  # seconds between two tries to reach a store again
MOVED = object()  # when all users are where they belong

# How often to optimise by itself, in the engine's `contract`.
OPTIMISATION = (
    "is_auto_optimization_enabled",
    "auto_optimization_frequency",
    "auto_optimization_start_date",
)
RETENTION = "log_retention_days"  # where a change of the retention stands in the engine's `contract`


def new_event_id() -> str:
    """Return an id that cannot be guessed."""
    return secrets.token_hex(16)


class Candidate(Struct, frozen=True, rename="camel"):
    """An action as ranked."""

    id: str
    probability: float


class Partial(Struct, frozen=True, rename="camel"):
    """Whom a decision rests on while some shards are being rebuilt."""

    users: int  # looked at
    shards: int  # that answered
    of: int  # shards there are


class Ranking(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The answer to a rank."""

    event_id: str
    chosen: str
    ranking: list[Candidate]
    partial: Partial | None = None  # only where a part of the users could not be asked


class Coordinator:
    """The one place where requests meet the engine; lives in the event loop's thread."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        clock: Clock | None = None,
        shards: Any = None,
    ) -> None:
        self.settings = settings
        self.store = store
        self.clock = clock or SteadyClock()
        self.shards = shards  # an engine of coterie.engines, where users' models are kept
        self.engine = Engine(shards)
        self.turns = Turns()  # whoever reads or changes the engine for longer than a moment takes one
        self._moving = False  # whether users go from shard to shard
        self._together = None if shards is None else Together(self._rank_many)
        self.committer: Committer
        self.refusing: str | None = "starting"  # why writes are refused, if they are
        self.waiting = False  # whether another process owns the store
        # Called when a store that is free now cannot be served.
        self.give_up: Callable[[], None] = lambda: None
        self.closing = False
        self.saved = False  # whether a stop has written its snapshot
        self._tasks: list[asyncio.Task[None]] = []
        self._snapshot_at = 0
        self._scrubbing = asyncio.Lock()
        self._saving = asyncio.Lock()  # one snapshot at a time
        self._healing: asyncio.Task[None] | None = None
        self.stopped_exploring = False
        self.guess_changes: float | None = None  # how many best guesses of the last hour would be others now
        self.pauses: Sequence[float] = PAUSES
        self.on_batch: Callable[[int, float], None] | None = None

    # Life.

    async def start(self) -> None:
        """Recover, then accept."""
        if await asyncio.to_thread(self.store.own):
            await self._begin()
        else:
            self._wait()
            self._tasks.append(asyncio.create_task(self._take_over()))

    async def _begin(self) -> None:
        self.engine = await self._recovered()
        self._snapshot_at = self.engine.position
        self.committer = Committer(self.store, self.engine.position, self.on_batch)
        self.refusing = None
        await self._write(self._follow_clock, long=True)
        await self.configure(*self._first_rules())
        await self._scrub()
        self._tasks += [asyncio.create_task(self._pass_time()), asyncio.create_task(self._look_after())]
        self._tasks.append(asyncio.create_task(self._keep_asking()))

    def _wait(self) -> None:
        if not self.waiting:
            log.warning(WAITING)
        self.waiting, self.refusing = True, WAITING

    async def _take_over(self) -> None:
        """Begin once the owner of the store is gone; end the process if that fails, so that another can."""
        while True:
            try:
                await self._begin()
                gc.freeze()  # as after a start
                log.warning("the database is ours now, and new work is accepted")
                return
            except Exception as error:
                if self.waiting and isinstance(error, LostError):
                    await self._connect_again(error)
                    continue
                log.error(f"the database is free, but the start failed: {error}")
                self.waiting, self.refusing = False, "the start failed"
                self.give_up()
                return

    async def _connect_again(self, error: CoterieError) -> None:
        """Connect to the database, after a pause that grows with every try."""
        for pause in chain(self.pauses, repeat(self.pauses[-1])):
            log.warning(f"the database cannot be reached, trying again in {pause:g} s: {error}")
            await asyncio.sleep(pause)
            try:
                await beside(self.store.reconnect)
                return
            except FileError as again:
                error = again

    async def _recovered(self) -> Engine:
        """Return the engine as the log says, once the store is ours."""
        standby = Standby(self.store, self.shards)
        await standby.wait(self._wait)
        async with self._scrubbing:
            engine = await beside(standby.engine)
        engine.refuse_partial = self.settings.when_down == "refuse"
        self.waiting = False
        return engine

    async def _look_after(self) -> None:
        """Look every second whether the store is still ours, also while there is nothing to write."""
        while True:
            await asyncio.sleep(OWN_EVERY)
            if self.refusing is None:
                try:
                    await beside(self.store.own)
                except StoreError as error:
                    self.fail(error)

    def _first_rules(self) -> tuple[Config, dict[str, Any]]:
        """Return the rules of this start: what its settings name, and for the rest what the log says."""
        contract = dict(self.engine.contract)
        if RETENTION in contract and self.settings.names("retention_days"):
            del contract[RETENTION]
        if self.settings.names("optimise_days"):
            contract = {name: value for name, value in contract.items() if name not in OPTIMISATION}
        config = starting_config(self.settings, self.engine.config)
        if self.shards is not None:
            if self.engine.position == 0 and not self.settings.names("config.policy"):
                config = msgspec.structs.replace(config, policy="cab")  # the default cannot be kept in shards
            check_config(config, self.shards)
        return config, contract

    @property
    def retention_days(self) -> float:
        """How long the log is kept: as last said, at the start or since."""
        return float(self.engine.contract.get(RETENTION, self.settings.retention_days))

    async def stop(self) -> None:
        """Refuse new work, finish what was accepted, snapshot, and release the store; `saved` says if that worked."""
        self.closing = True
        waited = self.waiting  # then all that was acknowledged is the owner's
        self.refusing = "stopping"
        tasks = [*self._tasks, *([self._healing] if self._healing else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # one may be writing a snapshot
        try:
            await self._do(lambda: None)  # what runs beside the loop ends first
            if not hasattr(self, "committer"):
                self.saved = waited
                return
            await self.committer.close()
            if waited:
                self.saved = True
                return
            if self.committer.failed is not None:
                raise self.committer.failed
            await self.snapshot()
            self.saved = True
        except CoterieError as error:  # what was acknowledged is in the log
            log.error(f"no snapshot was written at the stop, so the next start reads the log: {error}")
        finally:
            self.turns.close()
            self.store.close()
            if self.shards is not None:
                self.shards.close()

    # Writes.

    async def rank(self, question: Question, check: Check | None = None) -> Rank:
        """Decide; a retry of the same event gets the same answer. `check` may refuse once it is its turn."""
        if self._together is None:
            long = self.engine.long_to_decide(question.work, len(question.actions))
            found: Any = await self._write(lambda: self._rank(question, check), long)
        else:
            self._accept()
            if check is not None:
                check()
            with self._refusals():
                found = await self._together.ask(question)
        await self._durable()
        return found if isinstance(found, Rank) else await self.decision(found)

    def _rank(self, question: Question, check: Check | None) -> Rank | Event:
        if check is not None:
            check()
        return self.engine.rank(question, self.clock())

    async def _rank_many(self, questions: Sequence[Question]) -> list[Answer]:
        return await self._write(lambda: self.engine.rank_many(questions, self.clock()), long=True)

    async def what_if(self, question: Question) -> Rank:
        """Return what would be decided now; nothing is recorded."""
        return await self.look(lambda: self.engine.what_if(question)[0])

    async def rank_slots(self, questions: Sequence[Question], check: Check | None = None) -> list[Rank]:
        """Decide the slots of one page, durable together; an action chosen for one is not open to the next."""
        work = sum(DECIDING + question.work for question in questions)
        long = self.engine.long_to_decide(work, sum(len(question.actions) for question in questions))
        found = await self._write(lambda: self._rank_slots(questions, check), long)
        await self._durable()
        return found if found is not None else await self._slots_again(questions)

    def _rank_slots(self, questions: Sequence[Question], check: Check | None) -> list[Rank] | None:
        """Decide all slots, then keep all: all of it is refused, or none. Returns None for a retry."""
        if check is not None:
            check()
        if questions[0].event in self.engine.events:
            return None
        found: list[Rank] = []
        taken: set[str] = set()
        at = self.clock()
        for k, question in enumerate(questions):
            record = self.engine.decide(narrow(question, taken, questions[k + 1 :]), at)
            taken.add(record.actions[record.choice])
            found.append(record)
        for question, record in zip(questions, found, strict=True):
            self.engine.keep(question, record)
        return found

    async def _slots_again(self, questions: Sequence[Question]) -> list[Rank]:
        """Return the decisions that were made for these slots before."""
        found: list[Rank] = []
        taken: set[str] = set()
        for k, question in enumerate(questions):
            event = self.event(question.event)
            self.engine.check_retry(event, narrow(question, taken, questions[k + 1 :]).digest())
            record = await self.decision(event)
            taken.add(record.actions[record.choice])
            found.append(record)
        return found

    async def reward(self, event: str, value: float, name: str | None = None) -> Outcome:
        """Learn a reward, and say what became of it once that is durable."""
        long = self.engine.long_to_learn(event)
        outcome = await self._write(lambda: self.engine.reward(event, value, self.clock(), name), long)
        await self._durable()
        return outcome

    async def keep_decisions(self, decided: Sequence[Decided]) -> int:
        """Keep decisions that were made elsewhere, all or none, and return how many were new."""
        new = await self._write(lambda: keep_all(self.engine, decided, self.clock()), long=True)
        await self._durable()
        return new

    async def activate(self, event: str) -> bool:
        """Say that a deferred decision was shown; returns whether the event is known."""
        known = await self._write(lambda: self.engine.activate(event, self.clock()))
        await self._durable()
        return known

    async def forget(self, user: str) -> bool:
        """Forget a user: in the model at once, in the log before this returns. False if unknown."""
        number = await self._write(lambda: self.engine.forget(user, self.clock()), long=True)
        await self._durable()
        try:
            await self._scrub()  # also of users whom an earlier request forgot, and could not finish
        except StoreError as error:
            raise Problem(
                503, "not_erased", f"the user is forgotten, but traces are left: {error}; ask again", 1
            ) from error
        return number is not None

    async def configure(self, config: Config, contract: Mapping[str, Any] | None = None) -> None:
        """Change the rules from here on; another policy first learns what the log holds."""
        engine = self.engine

        def change() -> bool:
            if models_to_learn(engine, config):
                return False
            engine.configure(config, self.clock(), contract)
            return True

        if not await self._write(change):
            await self._relearn(engine, config, contract)
        await self._durable()

    async def _relearn(self, engine: Engine, config: Config, contract: Mapping[str, Any] | None) -> None:
        """Let engines with other models learn the log, then what came in meanwhile, and take their models.

        Nobody is scrubbed from the log meanwhile: half of what is learned would have other names than the rest.
        """
        check_config(config, self.shards)
        if engine.tap is not None:
            raise Problem(409, "busy", "another policy is learning the log already; wait for it")
        async with self._scrubbing:
            await self._relearn_unscrubbed(engine, config, contract)

    async def _relearn_unscrubbed(
        self, engine: Engine, config: Config, contract: Mapping[str, Any] | None
    ) -> None:
        users = await asyncio.to_thread(
            self.store.scrubs
        )  # whoever is forgotten from here on is not among them
        end = await self._write(lambda: _listen(engine))
        try:
            await self._durable()
            wanted = models_to_learn(engine, config)
            others = [
                await asyncio.to_thread(relearn, self.store, model, end, self.shards, users)
                for model in wanted
            ]
            while len(engine.tap or ()) > FEW:
                await asyncio.to_thread(_catch_up, others, await self._write(lambda: _heard(engine)))

            def take_over() -> None:
                if engine is not self.engine:
                    raise Problem(
                        503, "not_accepting", "the service went back to its log meanwhile; try again", 1
                    )
                at = self.clock()
                engine.tick(
                    at
                )  # waits that are over end in all of them; from here to the swap nothing else runs
                if models_to_learn(engine, config) != wanted:
                    raise Problem(409, "busy", "the rules were changed meanwhile; try again")
                _catch_up(others, _heard(engine))
                engine.tap, engine.relearn = None, partial(_give, list(zip(wanted, others, strict=True)))
                engine.configure(config, at, contract)

            await self._write(take_over, long=True)
        finally:
            engine.tap = engine.relearn = None

    async def rebalance(self, shards: int) -> None:
        """Share the users among so many shards, slot by slot; everything else goes on between two slots."""
        self._accept()
        engine, home = self.engine, self.shards
        if home is None:
            raise Problem(
                409, "no_shards", "the users are kept in this process; start with --engine for shards"
            )
        if not hasattr(home, "shards"):
            raise Problem(
                409, "no_shards", "the users are kept on one device; start with --engine ray… for shards"
            )
        if self._moving:
            raise Problem(409, "busy", "users are moving already; wait for it")
        self._moving = True
        try:
            home.shards = shards  # for policies that are made from now on
            sharded: list[Any] = list(engine.policies().values())
            for policy in sharded:
                moves = policy.models.rebalance(shards)
                while await self._write(partial(next, moves, MOVED), long=True) is not MOVED:
                    if engine is not self.engine:
                        raise Problem(503, "not_accepting", "the service went back to its log; try again", 1)
        finally:
            self._moving = False

    async def observe(self, rows: Sequence[tuple[str, Paid, float]]) -> None:
        """Learn payoffs from elsewhere: (user, what for, value)."""

        def learn() -> None:
            self.engine.check_items({paid.item for _, paid, _ in rows if paid.item is not None})
            for user, paid, value in rows:
                self.engine.observe(user, value, self.clock(), *paid)

        await self._write(learn, long=True)
        await self._durable()

    async def reset(self) -> None:
        """Empty the model; the log stays."""
        await self._write(lambda: self.engine.reset(self.clock()))
        await self._durable()

    async def import_model(self, content: bytes) -> None:
        """Replace the model by that of a file; refused whole if anything is wrong with it."""
        await self._write(lambda: import_model(content, self.engine, self.clock()), long=True)
        await self._durable()

    async def delete_log(self) -> None:
        """Keep what was learned as a snapshot, and let the log before it go."""
        self._accept()
        position = self.engine.position
        await self.snapshot(alone=True)
        await asyncio.to_thread(self.store.compact, position)

    async def snapshot(self, alone: bool = False) -> None:
        """Keep the state as it is now, so that a start need not replay the whole log."""
        async with self._saving:
            await save(self.engine, self.store, self._durable, self._do, alone)

    # Reads.

    async def look(self, work: Callable[[], T]) -> T:
        """Return what `work` reads from the engine, beside the loop, while nobody changes anything."""
        return await self._do(work, long=True)

    def oldest(self) -> int | None:
        """Return the time of the oldest kept record, in milliseconds; reads the store."""
        for batch in self.store.read(self.store.bounds()[0]):
            return batch.records()[0].at
        return None

    def event(self, event: str) -> Event:
        """Return a remembered event."""
        found = self.engine.events.get(event)
        if found is None:
            raise Problem(404, "unknown_event", f"event {event!r} is not known, or was too long ago")
        return found

    async def decision(self, event: Event) -> Rank:
        """Return the decision of an event, from the log."""
        record = await asyncio.to_thread(self._read, event.position)
        if not isinstance(record, Rank):
            raise Problem(404, "unknown_event", f"event {event.id!r} is no longer in the log")
        return record

    def _read(self, position: int) -> Record | None:
        for batch in self.store.read(position):
            if batch.first <= position < batch.first + batch.count:
                return batch.records()[position - batch.first]
            break
        return None

    @property
    def queued(self) -> int:
        """How many requests wait for their turn or for the disk."""
        return self.turns.waiting + (self.committer.queued if hasattr(self, "committer") else 0)

    # Inside.

    def _accept(self) -> None:
        if self.refusing is not None:
            raise Problem(503, "not_accepting", f"no new work is accepted now: {self.refusing}", 1)
        queued = self.queued
        if queued >= self.settings.max_queue:
            raise Problem(503, "overloaded", f"{queued} requests wait for their turn or for the disk", 1)

    async def _write(self, work: Callable[[], T], long: bool = False) -> T:
        """Change the engine, if new work is accepted: now, and when it is its turn."""
        self._accept()

        def accepted() -> T:
            if self.refusing is not None:
                self._accept()
            return work()

        return await self._do(accepted, long)

    async def _do(self, work: Callable[[], T], long: bool = False) -> T:
        """Let the engine work when it is its turn, and hand what it did to the log.

        What is `long`, or may be, is done beside the event loop.
        """
        async with self.turns:
            try:
                with self._refusals():
                    if long or self.shards is not None or self.engine.long_to_end(self.clock()):
                        return await self.turns.beside(work)
                    return work()
            finally:
                self._flush()

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Say what the engine refuses as HTTP does."""
        try:
            yield
        except ContextError as error:
            raise Problem(422, "invalid_features", str(error)) from error
        except UnavailableError as error:
            # Some users' models are gone for good; the log has them, and a start reads it.
            self.refusing = str(error)
            raise Problem(503, "shards_lost", str(error), 1) from error

    def _flush(self) -> None:
        if self.engine.outbox:
            self.committer.submit(self.engine.drain())

    async def _durable(self) -> None:
        try:
            await self.committer.durable()
        except StoreError as error:
            self.fail(error)
            raise Problem(503, "not_stored", f"the request was not stored: {error.said}", 1) from error

    def fail(self, error: StoreError) -> None:
        """Stop accepting, and go back to what the log says."""
        if self.refusing is None:
            log.error(f"no new work is accepted: {error}")
            self.refusing = error.said
            self._healing = asyncio.create_task(self._heal(error))

    async def _heal(self, error: StoreError) -> None:
        """Take over what the log says, for what failed was applied already, and go on if the store does.

        A failed write or sync is never tried again as if it were fine: only a restart reads the disk anew.
        """
        tries = 0
        current = False  # whether the engine is what the log says
        await self.committer.give_up(error)
        while True:
            try:
                if isinstance(error, LostError):
                    await asyncio.to_thread(self.store.reconnect)
                if not current:
                    engine = await self._recovered()
                    async with self.turns:
                        self.engine, current = engine, True
                if isinstance(error, FullError):
                    await asyncio.sleep(self.pauses[0])
                    await self._probe()
                break
            except FullError as again:
                error = again
            except StoreError as again:
                error, current = again, False
            except FileError as again:
                if not isinstance(error, LostError):
                    log.error(f"the log cannot be read: {again}")
                    return
                pause = self.pauses[min(tries, len(self.pauses) - 1)]
                log.warning(f"the database cannot be reached, trying again in {pause:g} s: {again}")
                await asyncio.sleep(pause)
                tries += 1
            self.refusing = error.said
        if not isinstance(error, BrokenError):
            self.committer.abandon()
            self.committer = Committer(self.store, self.engine.position, self.on_batch)
            self.refusing = None
            log.warning("the store takes records again, and new work is accepted")

    async def _probe(self) -> None:
        """Write a record that says nothing new, to see whether there is room."""
        probe = Tick(max(self.clock(), self.engine.now))
        batch = pack(self.engine.position, [encode(probe)])
        await asyncio.to_thread(self.store.append, Append(batch))
        await self._do(lambda: self.engine.apply(probe), long=True)

    async def _pass_time(self) -> None:
        while True:
            await asyncio.sleep(0.25)
            if self.refusing is None:
                with suppress(Problem):
                    await self._write(self._tick)
                if self.engine.position - self._snapshot_at >= self.settings.snapshot_every:
                    self._snapshot_at = self.engine.position
                    try:
                        await self.snapshot()
                        await self._let_go()
                    except CoterieError as error:  # the log alone is enough
                        log.error(f"a snapshot failed: {error}")

    async def _keep_asking(self) -> None:
        while True:
            await asyncio.sleep(exploring.EVERY)
            if self.refusing is None:
                with suppress(CoterieError):  # the next time is soon
                    await self.ask_again()

    async def ask_again(self) -> None:
        """See how many best guesses of the last hour would be others now; each is asked in a turn of its own."""
        changed = []
        for position in await self.look(lambda: exploring.to_ask(self.engine)):
            record = await asyncio.to_thread(self._read, position)
            if isinstance(record, Rank):
                changed.append(await self.look(partial(exploring.asked_again, record, self.engine)))
        self.guess_changes = exploring.share(changed)

    def _watch_exploring(self) -> None:
        """Say it once when the loop stops exploring, and once when it explores again."""
        engine = self.engine
        said = exploring.warning(engine.statistics, engine.config, engine.now)
        if said is not None and not self.stopped_exploring:
            log.warning(said)
        elif said is None and self.stopped_exploring:
            log.info("the loop explores again")
        self.stopped_exploring = said is not None

    def _tick(self) -> None:
        self._watch_exploring()
        self._follow_clock()
        self.engine.tick(self.clock())

    def _follow_clock(self) -> None:
        """Tell the engine if the time of day jumped: just now, or back while nobody was looking."""
        by, now = self.clock.follow(), self.engine.now
        at = self.clock()
        if by == 0 and at < now - JUMP:
            by = at - now  # how long it was away is not known: not at all
        if by:
            log.warning(f"the time of day jumped by {by / 1000:.1f} s; waits for rewards do not")
            self.engine.jump(at, by)

    async def _let_go(self) -> None:
        if self.retention_days >= 0:
            before = self.clock() - int(self.retention_days * 86_400_000)
            await asyncio.to_thread(let_go, self.store, before)

    async def _scrub(self) -> None:
        """Scrub whoever was forgotten; what a crash interrupts, the next start finishes. See erasure."""
        async with self._scrubbing:
            users = await asyncio.to_thread(self.store.scrubs)
            if users:
                await self.snapshot(alone=True)
                await beside(scrub, self.store, users)
                await beside(self.store.scrubbed, users)


def _listen(engine: Engine) -> int:
    """Let the engine also put aside what it emits from here on, and return where that begins."""
    engine.tap = []
    return engine.position


def _heard(engine: Engine) -> list[Record]:
    """Return what the engine put aside since the last call."""
    heard, engine.tap = engine.tap or [], []
    return heard


def _catch_up(engines: Sequence[Engine], records: Sequence[Record]) -> None:
    for engine in engines:
        for record in records:
            engine.apply(record)
        engine.drain()


def _give(learned: list[tuple[Config, Engine]], model: Config) -> Engine:
    """Return an engine that learned with a model, and each only once: two arms must not share one."""
    k = next(k for k, (asked, _) in enumerate(learned) if same_model(asked, model) == asked)
    return learned.pop(k)[1]


def ranking_of(record: Rank) -> Ranking:
    """Return the answer of a decision: every action with the probability it had."""
    actions, choices = record.actions, len(record.actions) - len(record.excluded)
    shown = record.order[:choices]
    if record.chances is not None:
        open_to = (
            [k for k in range(len(actions)) if k not in record.excluded]
            if record.excluded
            else range(choices)
        )
        chances = dict(zip(open_to, np.frombuffer(record.chances).tolist(), strict=True))
        ranking = [Candidate(actions[k], chances[k]) for k in shown]
    elif record.shown == "baseline":
        ranking = [Candidate(actions[k], float(k == record.choice)) for k in shown]
    else:
        best, high = record.best, probability(True, record.exploration, choices)
        low = probability(False, record.exploration, choices)
        ranking = [Candidate(actions[k], high if k == best else low) for k in shown]
    ranking += [Candidate(actions[k], 0.0) for k in record.order[choices:]]
    partial = None if record.seen is None else Partial(*record.seen)
    return Ranking(record.parent or record.event, actions[record.choice], ranking, partial)
