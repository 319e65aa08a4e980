"""The desk: takes a request, lets the engine decide at once, and answers when the log is durable.

Both HTTP dialects, the native and the compatible one, and the page talk to it and to nothing below it.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from coterie.errors import ContextError, UnavailableError
from coterie.service.committer import Committer
from coterie.service.engine import (
    Answer,
    Engine,
    Paid,
    Question,
    check_config,
    probability,
    same_model,
)
from coterie.service.erasure import scrub
from coterie.service.events import Event, Outcome
from coterie.service.model_file import import_model
from coterie.service.problems import Problem
from coterie.service.records import Rank, Record, Tick, encode, pack
from coterie.service.recovery import recover, relearn
from coterie.service.saving import beside, save
from coterie.service.settings import Config, Settings, starting_config
from coterie.service.slots import narrow
from coterie.service.store import Append, FullError, Store, StoreError
from coterie.service.together import Together
from coterie.service.upkeep import let_go

log = logging.getLogger("coterie.service")

RETENTION = "log_retention_days"  # where a change of the retention stands in the engine's `contract`


def milliseconds() -> int:
    """Return the time, as records have it."""
    return time.time_ns() // 1_000_000


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


class Desk:
    """The one place where requests meet the engine; lives in the event loop's thread."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        clock: Callable[[], int] = milliseconds,
        shards: Any = None,
    ) -> None:
        self.settings = settings
        self.store = store
        self.clock = clock
        self.shards = shards  # an engine of coterie.engines, where users' models are kept
        self.engine = Engine(shards)
        self._moving = False  # whether users go from shard to shard
        self._together = None if shards is None else Together(self._rank_many)
        self.committer: Committer
        self.refusing: str | None = "starting"  # why writes are refused, if they are
        self.closing = False
        self._tasks: list[asyncio.Task[None]] = []
        self._snapshot_at = 0
        self._scrubbing = asyncio.Lock()
        self._saving = asyncio.Lock()  # one snapshot at a time
        self._healing: asyncio.Task[None] | None = None
        self.on_batch: Callable[[int, float], None] | None = None

    # Life.

    async def start(self) -> None:
        """Recover, then accept."""
        self.engine = await self._recovered()
        self._snapshot_at = self.engine.position
        self.committer = Committer(self.store, self.engine.position, self.on_batch)
        self.refusing = None
        await self.configure(*self._first_rules())
        await self._scrub()
        self._tasks = [asyncio.create_task(self._pass_time())]

    async def _recovered(self) -> Engine:
        engine = await asyncio.to_thread(recover, self.store, False, self.shards)
        engine.refuse_partial = self.settings.when_down == "refuse"
        return engine

    def _first_rules(self) -> tuple[Config, dict[str, Any]]:
        """Return the rules of this start: what its settings name, and for the rest what the log says."""
        contract = dict(self.engine.contract)
        if RETENTION in contract and self.settings.names("retention_days"):
            del contract[RETENTION]
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
        """Refuse new work, finish what was accepted, snapshot, and release the store."""
        self.closing = True
        self.refusing = "stopping"
        tasks = [*self._tasks, *([self._healing] if self._healing else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # one may be writing a snapshot
        try:
            await self.committer.close()
            if self.committer.failed is None:
                with suppress(UnavailableError):  # of lost users there is nothing to keep: the log has them
                    await self.snapshot()
        finally:
            self.store.close()
            if self.shards is not None:
                self.shards.close()

    # Writes.

    async def rank(self, question: Question) -> Rank:
        """Decide; a retry of the same event gets the same answer."""
        self._accept()
        with self._engine_at_work():
            if self._together is None:
                found: Any = self.engine.rank(question, self.clock())
            else:
                found = await self._together.ask(question)
        await self._durable()
        return found if isinstance(found, Rank) else await self.decision(found)

    def _rank_many(self, questions: Sequence[Question]) -> list[Answer]:
        try:
            return self.engine.rank_many(questions, self.clock())
        finally:
            self._flush()

    async def rank_slots(self, questions: Sequence[Question]) -> list[Rank]:
        """Decide the slots of one page, durable together; an action chosen for one is not open to the next."""
        self._accept()
        found: list[Rank] = []
        taken: set[str] = set()
        with self._engine_at_work():
            for k, question in enumerate(questions):
                self.engine.what_if(
                    narrow(question, taken, questions[k + 1 :])
                )  # all of it is refused, or none
            for k, question in enumerate(questions):
                made = self.engine.rank(narrow(question, taken, questions[k + 1 :]), self.clock())
                record = made if isinstance(made, Rank) else await self.decision(made)
                taken.add(record.actions[record.choice])
                found.append(record)
        await self._durable()
        return found

    async def reward(self, event: str, value: float, name: str | None = None) -> Outcome:
        """Learn a reward, and say what became of it once that is durable."""
        self._accept()
        with self._engine_at_work():
            outcome = self.engine.reward(event, value, self.clock(), name)
        await self._durable()
        return outcome

    async def activate(self, event: str) -> bool:
        """Say that a deferred decision was shown; returns whether the event is known."""
        self._accept()
        with self._engine_at_work():
            known = self.engine.activate(event, self.clock())
        await self._durable()
        return known

    async def forget(self, user: str) -> bool:
        """Forget a user: in the model at once, in the log before this returns. False if unknown."""
        self._accept()
        with self._engine_at_work():
            number = self.engine.forget(user, self.clock())
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
        self._accept()
        engine = self.engine
        if same_model(engine.config, config) == engine.config:
            engine.configure(config, self.clock(), contract)
        else:
            await self._relearn(engine, config, contract)
        self._flush()
        await self._durable()

    async def _relearn(self, engine: Engine, config: Config, contract: Mapping[str, Any] | None) -> None:
        check_config(config, self.shards)
        if engine.tap is not None:
            raise Problem(409, "busy", "another policy is learning the log already; wait for it")
        engine.tap, end = [], engine.position
        try:
            self._flush()
            await self._durable()
            other = await asyncio.to_thread(relearn, self.store, config, end, self.shards)
            self._accept()
            if engine is not self.engine:
                raise Problem(
                    503, "not_accepting", "the service went back to its log meanwhile; try again", 1
                )
            # What came in meanwhile is learned at once: from here to the swap nothing else runs.
            for record in engine.tap:
                other.apply(record)
            engine.tap = None
            engine.relearn = lambda _: other
            engine.configure(config, self.clock(), contract)
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
        if self._moving:
            raise Problem(409, "busy", "users are moving already; wait for it")
        self._moving = True
        try:
            home.shards = shards  # for policies that are made from now on
            sharded: list[Any] = list(engine.policies().values())
            for policy in sharded:
                with self._engine_at_work():
                    for _ in policy.models.rebalance(shards):
                        await asyncio.sleep(0)
                        self._accept()
                        if engine is not self.engine:
                            raise Problem(
                                503, "not_accepting", "the service went back to its log; try again", 1
                            )
        finally:
            self._moving = False

    async def observe(self, rows: Sequence[tuple[str, Paid, float]]) -> None:
        """Learn payoffs from elsewhere: (user, what for, value)."""
        self._accept()
        self.engine.check_items({paid.item for _, paid, _ in rows if paid.item is not None})
        with self._engine_at_work():
            for user, paid, value in rows:
                self.engine.observe(user, value, self.clock(), *paid)
        await self._durable()

    async def reset(self) -> None:
        """Empty the model; the log stays."""
        self._accept()
        with self._engine_at_work():
            self.engine.reset(self.clock())
        await self._durable()

    async def import_model(self, content: bytes) -> None:
        """Replace the model by that of a file; refused whole if anything is wrong with it."""
        self._accept()
        import_model(content, self.engine, self.clock())
        self._flush()
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
            await save(self.engine, self.store, self._durable, alone)

    # Reads.

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
        """How many requests wait for the disk."""
        return self.committer.queued if hasattr(self, "committer") else 0

    # Inside.

    def _accept(self) -> None:
        if self.refusing is not None:
            raise Problem(503, "not_accepting", f"no new work is accepted now: {self.refusing}", 1)
        if self.committer.queued >= self.settings.max_queue:
            raise Problem(503, "overloaded", f"{self.committer.queued} requests wait for the disk", 1)

    @contextmanager
    def _engine_at_work(self) -> Iterator[None]:
        """Say what the engine refuses as HTTP does, and hand what it did to the log."""
        try:
            yield
        except ContextError as error:
            raise Problem(422, "invalid_features", str(error)) from error
        except UnavailableError as error:
            # Some users' models are gone for good; the log has them, and a start reads it.
            self.refusing = str(error)
            raise Problem(503, "shards_lost", str(error), 1) from error
        finally:
            self._flush()

    def _flush(self) -> None:
        if self.engine.outbox:
            self.committer.submit(self.engine.drain())

    async def _durable(self) -> None:
        try:
            await self.committer.durable()
        except StoreError as error:
            self._fail(error)
            raise Problem(503, "not_stored", f"the request was not stored: {error}", 1) from error

    def _fail(self, error: StoreError) -> None:
        """Stop accepting, and go back to what the log says."""
        if self.refusing is None:
            self.refusing = str(error)
            self._healing = asyncio.create_task(self._heal(error))

    async def _heal(self, error: StoreError) -> None:
        # What failed was applied already: only the log can say what is true now.
        self.engine = await self._recovered()
        while isinstance(error, FullError):
            await asyncio.sleep(1)
            probe = Tick(max(self.clock(), self.engine.now))
            try:
                batch = pack(self.engine.position, [encode(probe)])
                await asyncio.to_thread(self.store.append, Append(batch))
            except StoreError as again:
                error = again
                self.refusing = str(error)
                continue
            self.engine.apply(probe)
            self.committer.abandon()
            self.committer = Committer(self.store, self.engine.position, self.on_batch)
            self.refusing = None
            return
        # A failed write or sync is never tried again as if it were fine: only a restart reads the disk anew.

    async def _pass_time(self) -> None:
        while True:
            await asyncio.sleep(0.25)
            if self.refusing is None:
                with suppress(Problem), self._engine_at_work():
                    self.engine.tick(self.clock())
                if self.engine.position - self._snapshot_at >= self.settings.snapshot_every:
                    self._snapshot_at = self.engine.position
                    try:
                        await self.snapshot()
                        await self._let_go()
                    except (Problem, StoreError) as error:
                        log.error("a snapshot failed", exc_info=error)  # the log alone is enough

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
