"""The cost of many users: start, memory, snapshots under load, and processor time of a rank and a reward.

One process fills a store, and another starts from it, so the memory is that of a service after its start.
"""

import asyncio
import gc
import multiprocessing
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from coterie.bench.measuring import Measured, at_most, best_of, no_limit, peak_resident
from coterie.bench.service.loadtest import CONTEXTS, action_features, context_features
from coterie.data.logs.records import pack
from coterie.data.logs.rules import Config
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.core.bandit import Bandit
from coterie.service.core.encoding import shown
from coterie.service.core.question import Action, Question
from coterie.service.core.warm_up import warm_up
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.log.store import Append
from coterie.service.settings import Settings
from coterie.service.snapshots.saving import save_now

SUITE = "snapshots"
ACTIONS = 20
BATCH = 5_000  # records per write
TAIL = 50_000  # decisions after the snapshot, each with a reward, that a start replays: the most possible


class Figures(Struct, frozen=True):
    """The measurements for one number of users; times of the event loop's thread are processor time."""

    users: int
    effects: int
    start: float  # seconds until new work is accepted
    memory: float  # peak bytes, including snapshots
    whole: float  # bytes of a full snapshot
    held: float  # seconds of the longest iteration of the event loop during it
    held_before: float  # the same before it, with the same requests
    waited: float  # wall-clock seconds of the slowest request during it
    waited_before: float
    part: float  # bytes of a snapshot after one more request
    rank: float  # seconds
    reward: float


def rows(quick: bool, on_progress: Callable[[str], None]) -> Iterator[Measured]:
    """Yield the cost of many users: 20,000 if quick, else a million."""
    few, many = measure(100, on_progress), measure(20_000 if quick else 1_000_000, on_progress)
    users = f"{many.users:,} users"

    def row(name: str, value: float, unit: str, against: str, **rest: Any) -> Measured:
        return Measured(SUITE, name, value, unit, against, **rest)

    yield row(f"a start, {users}", many.start, "s", "60 s", **at_most(1, many.start / 60))
    yield row(f"peak memory, {users}", many.memory / 1e9, "GB", "2 GB", **at_most(1, many.memory / 2e9))
    yield row(
        f"longest turn of the event loop during a snapshot, {users}",
        1000 * many.held, "ms of processor time", "50 ms", **at_most(1, many.held / 0.05),
    )  # fmt: skip
    yield row(
        "the same without a snapshot",
        1000 * many.held_before, "ms of processor time", "50 ms", **no_limit(many.held_before / 0.05),
    )  # fmt: skip
    yield row(
        f"slowest rank and reward during a snapshot, {users}",
        1000 * many.waited, "ms", f"{1000 * many.waited_before:.3g} ms, the slowest without one",
        **no_limit(many.waited / many.waited_before),
    )  # fmt: skip
    yield row(
        "written by a snapshot after one more rank and reward",
        many.part / 1e6, "MB", f"{many.whole / 1e6:.4g} MB, all of it", **no_limit(many.part / many.whole),
    )  # fmt: skip
    for what, value, before, limit in (
        ("a rank with features", many.rank, few.rank, at_most(1.1, many.rank / few.rank)),
        ("a reward", many.reward, few.reward, no_limit(many.reward / few.reward)),
    ):
        against = f"{1e6 * before:.3g} µs with 100 users"
        yield row(f"{what}, {users}", 1e6 * value, "µs of processor time", against, **limit)


def measure(users: int, on_progress: Callable[[str], None] | None = None) -> Figures:
    """Fill a store, start from it, and measure."""
    spawn = multiprocessing.get_context("spawn")
    found: Any = None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "many.db"
        for work, name in ((fill, "filling the store"), (figures, "measuring")):
            if on_progress is not None:
                on_progress(f"{users:,} users: {name}")
            with ProcessPoolExecutor(1, spawn) as process:
                found = process.submit(work, str(path), users).result()
    return found  # type: ignore[no-any-return]


def fill(path: str, users: int) -> None:
    """Write a store with one payoff per user, a snapshot, and more records after it."""
    chance, bandit, store = random.Random(0), Bandit(), SqliteStore(path)
    bandit.configure(Config(), 0)
    sent = [
        shown(f"item-{k}", action_features(k), context_features(chance.randrange(CONTEXTS)))
        for k in range(ACTIONS)
        for _ in range(50)
    ]
    for user in range(users):
        bandit.observe(f"user-{user}", chance.choice(sent), float(chance.random() < 0.3), user)
        if len(bandit.outbox) >= BATCH:
            _append(bandit, store)
    _append(bandit, store)
    save_now(bandit, store)
    store.compact(bandit.position)
    for k in range(min(TAIL, users)):
        bandit.rank(question(f"tail-{k}", chance.randrange(users)), users + k)
        bandit.reward(f"tail-{k}", 1.0, users + k)
        if len(bandit.outbox) >= BATCH:
            _append(bandit, store)
    _append(bandit, store)
    store.close()


def _append(bandit: Bandit, store: SqliteStore) -> None:
    first = bandit.position - len(bandit.outbox)
    records, named, gone, scrub = bandit.drain()
    if records:
        store.append(Append(pack(first, records), named, gone, scrub))


def question(event: str, user: int) -> Question:
    """Return a rank with features, as in the load test."""
    actions = [Action(f"item-{k}", action_features(k)) for k in range(ACTIONS)]
    return Question(event, f"user-{user}", actions, context_features(user % CONTEXTS))


def figures(path: str, users: int, seconds: float = 3.0) -> Figures:
    """Start from a store and measure; the first `seconds` are without a snapshot."""
    return asyncio.run(_figures(path, users, seconds))


async def _figures(path: str, users: int, seconds: float) -> Figures:
    begin = time.perf_counter()
    store = SqliteStore(path)
    # Snapshots are made only on request, and no record expires.
    coordinator = Coordinator(Settings(store=path, snapshot_every=2**40, retention_days=-1.0), store)
    await coordinator.start()
    await asyncio.to_thread(warm_up, coordinator.bandit.config)
    gc.freeze()  # as the application does
    start = time.perf_counter() - begin
    load = _Load(coordinator, users)
    await load.run(asyncio.create_task(asyncio.sleep(seconds)))
    held_before, waited_before = load.held, load.waited
    coordinator.bandit.kept = {}  # so that the next snapshot is a full one
    await load.run(asyncio.create_task(coordinator.snapshot(alone=True)))
    whole = _bytes(store, store.pieces())
    held, waited = load.held, load.waited
    await coordinator.snapshot()
    before = store.pieces()
    await load.ask()
    await coordinator.snapshot()
    part = _bytes(store, store.pieces() - before)
    memory = peak_resident()
    model: Any = coordinator.bandit.policies.made["model"]
    effects = model._model.effects.used
    await coordinator.stop()
    rank, reward = _costs(coordinator.bandit, users)  # not stored
    return Figures(
        users, effects, start, memory, whole, held, held_before, waited, waited_before, part, rank, reward
    )


class _Load:
    """Sends requests one after the other, and measures each iteration of the event loop."""

    def __init__(self, coordinator: Coordinator, users: int) -> None:
        self._coordinator, self._users, self._count = coordinator, users, 0
        self._chance = random.Random(1)
        self.held = self.waited = 0.0

    async def run(self, until: asyncio.Task[None]) -> None:
        """Send requests until a task is done."""
        self.held = self.waited = 0.0
        watching = asyncio.create_task(self._watch(until))
        while not until.done():
            begin = time.perf_counter()
            await self.ask()
            self.waited = max(self.waited, time.perf_counter() - begin)
        await watching
        await until

    async def ask(self) -> None:
        """Send a rank and its reward."""
        self._count += 1
        event = f"load-{self._count}"
        await self._coordinator.rank(question(event, self._chance.randrange(self._users)))
        await self._coordinator.reward(event, 1.0)

    async def _watch(self, until: asyncio.Task[None]) -> None:
        while not until.done():
            begin = time.thread_time()
            await asyncio.sleep(0)
            self.held = max(self.held, time.thread_time() - begin)


def _bytes(store: SqliteStore, names: set[bytes]) -> float:
    return float(sum(len(store.piece(name) or b"") for name in names))


def _costs(bandit: Bandit, users: int, n: int = 3000) -> tuple[float, float]:
    """Return the processor time of a rank and of a reward by the bandit, the median of many."""
    chance = random.Random(2)
    questions = [question(f"cost-{k}", chance.randrange(users)) for k in range(n)]
    at = bandit.now
    ranks = [best_of(1, partial(bandit.rank, one, at)) for one in questions]
    rewards = [best_of(1, partial(bandit.reward, one.event, 1.0, at)) for one in questions]
    bandit.drain()
    return sorted(ranks)[n // 2], sorted(rewards)[n // 2]
