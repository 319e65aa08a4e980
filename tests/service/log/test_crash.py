"""R1: an acknowledged decision or reward survives kill −9, at whatever moment; the model equals a replay."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Protocol
from unittest.mock import patch

import httpx
import psycopg
import pytest

from coterie.data.logs.records import Configure, Rank, Record, Reward, flatten
from coterie.service.core.bandit import Bandit
from coterie.service.core.events import Outcome
from coterie.service.log.store import Store, open_store
from coterie.service.snapshots import snapshot
from coterie.service.snapshots.recovery import recover
from tests.service import postgres
from tests.service.crash_press import CONNECTIONS, Facts, Sender, press
from tests.service.process import SOURCE

ROOT = SOURCE.parent
LIVES = 50  # of services on one store
PATIENCE = 300  # seconds, on a machine with other things to do


class Start(Protocol):
    """Starts a service on a store, and returns its port and its process id."""

    def __call__(self, store: str, port: int = 0) -> tuple[int, int]: ...


@contextmanager
def host() -> Iterator[Start]:
    """Yield what starts services; a service that does not begin ends all of it, so that nobody waits for ever."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.service.crash_host"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{ROOT}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def start(store: str, port: int = 0) -> tuple[int, int]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{port} {store}\n")
        process.stdin.flush()
        late = threading.Timer(PATIENCE, process.kill)
        late.start()
        try:
            child = int(process.stdout.readline())
            said = process.stdout.readline()
        finally:
            late.cancel()
        assert "listening" in said, "the service did not begin"
        return int(said.rpartition(":")[2]), child

    try:
        assert process.stdout.readline() == "ready\n"
        yield start
    finally:
        os.killpg(
            process.pid, signal.SIGKILL
        )  # a service that still runs after a failure, too: it has the pipe
        process.communicate()


@contextmanager
def stores(kind: str, folder: Path) -> Iterator[Callable[[int], str]]:
    """Yield what gives the address of a new store by its number."""
    if kind == "sqlite":
        yield lambda number: str(folder / f"log-{number}.db")
        return
    with postgres.server() as url:

        def new(number: int) -> str:
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE store_{number}")
            return url.removesuffix("/postgres") + f"/store_{number}"

        yield new


def _wait_for(port: int, child: int) -> None:
    """Wait until a service answers as one that has started: ready, or waiting for another one."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        with suppress(httpx.TransportError):
            if httpx.get(f"http://127.0.0.1:{port}/readyz").json().get("status", "starting") != "starting":
                return
        assert Path(f"/proc/{child}").exists(), "the service did not start"
        time.sleep(0.005)
    raise TimeoutError("the service did not start")


async def _press_and_kill(port: int, child: int, senders: list[Sender], answers: int, delay: float) -> None:
    """Kill after so many answers and a moment: so that every machine gets as far, and no two kills are alike."""
    enough = asyncio.Event()
    work = asyncio.create_task(press(port, senders, answers, enough))
    async with asyncio.timeout(PATIENCE):
        await enough.wait()
        await asyncio.sleep(delay)
        os.kill(child, signal.SIGKILL)
        await work
        with suppress(ProcessLookupError):
            while True:  # until it is gone
                os.kill(child, 0)
                await asyncio.sleep(0.002)


def _until_free(store: str) -> None:
    """Wait until the server has noticed that the killed service is gone."""
    if store.startswith("postgresql"):
        with psycopg.connect(store, autocommit=True) as connection:
            others = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
                "AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
            )
            end = time.monotonic() + PATIENCE
            while connection.execute(others).fetchone() != (0,):
                assert time.monotonic() < end
                time.sleep(0.005)


def _kill_often(start: Start, store: str, kills: int, seed: int) -> Facts:
    rng = random.Random(seed)
    facts = Facts()
    others = seed // LIVES % 2 == 1  # other policies start guardrails again, so not in every store
    senders = [Sender(number, seed, facts, policies=others) for number in range(CONNECTIONS)]
    for _ in range(kills):
        port, child = start(store)
        _wait_for(port, child)
        answers = 0 if rng.random() < 0.1 else rng.randrange(1, 80)
        asyncio.run(_press_and_kill(port, child, senders, answers, rng.uniform(0, 0.02)))
        _until_free(store)
    port, child = start(store)
    _wait_for(port, child)  # this start finishes what the last kill interrupted
    asyncio.run(_press_and_kill(port, child, [], 0, 0.0))
    _until_free(store)
    _check(store, facts)
    return facts


def _check(store: str, facts: Facts) -> None:
    with closing(open_store(store, create=False)) as opened:
        ranks: Counter[str] = Counter()
        learned: Counter[str] = Counter()
        configured: set[float] = set()
        for _, record in flatten(opened.read()):
            if isinstance(record, Rank):
                ranks[record.event] += 1
            elif isinstance(record, Configure):
                configured.add(record.config.exploration)
        replayed = _replayed(opened, learned)
        assert facts.decided <= ranks.keys()
        assert facts.rewarded <= learned.keys()
        assert facts.configured <= configured
        assert not facts.gone & (ranks.keys() | learned.keys())
        assert max(ranks.values(), default=1) == 1
        assert max(learned.values(), default=1) == 1
        bandit = recover(opened)
        assert snapshot.dump(bandit) == snapshot.dump(replayed)
        facts.counts["priced"] = sum(
            isinstance(one, Rank) and one.price > 0 for _, one in flatten(opened.read())
        )
        facts.counts["broken"] = len(bandit.guards.broken_texts())


def _replayed(store: Store, learned: Counter[str]) -> Bandit:
    """Return what the whole log says, and count the rewards of each event that are learned."""
    usual = Bandit.apply

    def apply(bandit: Bandit, record: Record) -> Outcome | None:
        outcome = usual(bandit, record)
        if isinstance(record, Reward) and outcome == "applied" and bandit.fixed is None:
            learned[record.event] += 1
        return outcome

    with patch.object(Bandit, "apply", apply):
        return recover(store, from_empty=True)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
@pytest.mark.parametrize("kills", [5, pytest.param(1000, marks=pytest.mark.slow)])
def test_kills_under_load_lose_nothing_acknowledged(tmp_path: Path, kind: str, kills: int) -> None:
    """Every fifty kills have a store of their own. COTERIE_KILLS is how many there are instead of 1,000."""
    counts: Counter[str] = Counter()
    if kills == 1000:
        kills = int(os.environ.get("COTERIE_KILLS", kills))
    with stores(kind, tmp_path) as new, host() as start:
        begun = time.monotonic()
        for first in range(0, kills, LIVES):
            facts = _kill_often(start, new(first), min(LIVES, kills - first), seed=first + 1)
            counts.update(facts.counts)
            counts["again"] += facts.again
        seconds = time.monotonic() - begun
    print(f"{kind}: {kills} kills, {seconds / kills:.2f} s each, {dict(counts)}")
    assert {"rank", "reward", "forget"} <= counts.keys()
    assert counts["again"] > 0
    if kills >= 20:
        assert counts["priced"] > 0  # there was a budget
        assert counts["broken"] > 0  # and a guardrail that was broken
