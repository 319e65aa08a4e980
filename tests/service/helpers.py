"""What the service's tests share: a coordinator over a store, a clock one can turn, and small questions."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from litestar.testing import TestClient

from coterie.data.logs.records import Rank, pack
from coterie.data.logs.rules import Config
from coterie.service import clock as service_clock
from coterie.service.app import create_app
from coterie.service.coordination.coordinator import Coordinator
from coterie.service.core.bandit import Bandit
from coterie.service.core.events import Event
from coterie.service.core.question import Action, Question
from coterie.service.http.keys import Keyring
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.log.store import Append
from coterie.service.settings import Settings

T = TypeVar("T")
START = 1_800_000_000_000


class Clock:
    """A clock that stands until it is turned."""

    def __init__(self, now: int = START) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def turn(self, seconds: float) -> None:
        self.now += int(seconds * 1000)

    def follow(self) -> int:
        return 0  # what it is turned by has passed


def ask(event: str, user: str = "ann", actions: str = "abc", **more: Any) -> Question:
    """Return a question over one-letter actions."""
    return Question(event, user, [Action(name) for name in actions], **more)


def bandit(**config: Any) -> Bandit:
    """Return a configured bandit."""
    made = Bandit()
    made.configure(Config(**config), START)
    return made


def decide(made: Bandit, question: Question, at: int = START) -> Rank:
    """Return a decision that is new."""
    record = made.rank(question, at)
    assert isinstance(record, Rank)
    return record


def again(made: Bandit, question: Question, at: int = START) -> Event:
    """Return the event of a retry."""
    event = made.rank(question, at)
    assert isinstance(event, Event)
    return event


def settings_of(path: Path, config: Config | None = None, **more: Any) -> Settings:
    """Return settings for a store in a folder."""
    return Settings(store=str(path), config=config or Config(), **more)


def with_coordinator(
    settings: Settings,
    work: Callable[[Coordinator], Awaitable[T]],
    clock: service_clock.Clock | None = None,
    store: Any = None,
    engine: Any = None,
) -> T:
    """Start a coordinator, let `work` use it, and stop it."""

    async def go() -> T:
        opened = store or SqliteStore(settings.store, durability=settings.durability)
        coordinator = Coordinator(settings, opened, clock or Clock(), engine)
        await coordinator.start()
        try:
            return await work(coordinator)
        finally:
            await coordinator.stop()

    return asyncio.run(go())


def flush(coordinator: Coordinator) -> None:
    """Write to the log what its bandit has applied without it."""
    bandit = coordinator.bandit
    first = bandit.position - len(bandit.outbox)
    records, named, gone, scrub = bandit.drain()
    if records:
        coordinator.store.append(Append(pack(first, records), named, gone, scrub))


@contextmanager
def served(path: Path, config: Config | None = None, **more: Any) -> Iterator[tuple[Any, Coordinator]]:
    """Serve a store to a client in this process, with a clock that stands; yield the client and the coordinator."""
    settings = settings_of(path, config, **more)
    coordinator = Coordinator(settings, SqliteStore(settings.store), Clock())
    app = create_app(coordinator, Keyring([], []))
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False) as client:
        yield client, coordinator


@contextmanager
def opened(path: Path) -> Iterator[SqliteStore]:
    """Open a store, and close it."""
    store = SqliteStore(str(path))
    try:
        yield store
    finally:
        store.close()
