"""R1: an acknowledged decision or reward survives kill −9, at whatever moment; the model equals a replay."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from coterie.service import snapshot
from coterie.service.loadtest import Plan, Tally, press
from coterie.service.records import Rank, Reward, flatten
from coterie.service.recovery import recover
from tests.service.helpers import opened
from tests.service.process import SOURCE, free_port

ROOT = SOURCE.parent


async def _press_and_kill(url: str, child: int, after: float, seed: int) -> Tally:
    work = asyncio.create_task(
        press(url, Plan(seconds=30, connections=6, users=30, actions=6, rewards=0.7, seed=seed))
    )
    await asyncio.sleep(after)
    os.kill(child, signal.SIGKILL)
    tally = await work
    with suppress(ProcessLookupError):
        while True:  # until it is gone, and its store free
            os.kill(child, 0)
            await asyncio.sleep(0.01)
    return tally


def _wait_for(port: int) -> None:
    import socket

    end = time.monotonic() + 60
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.01)
    raise TimeoutError("the service did not start")


def _kill_often(path: Path, kills: int, seed: int) -> tuple[int, int]:
    rng = random.Random(seed)
    decided: set[str] = set()
    rewarded: set[str] = set()
    host = subprocess.Popen(
        [sys.executable, "-m", "tests.service.crash_host"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{ROOT}"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert host.stdin is not None
        assert host.stdout is not None
        assert host.stdout.readline() == "ready\n"
        for number in range(kills):
            port = free_port()
            host.stdin.write(f"{port} {path}\n")
            host.stdin.flush()
            child = int(host.stdout.readline())
            _wait_for(port)
            tally = asyncio.run(
                _press_and_kill(f"http://127.0.0.1:{port}", child, rng.uniform(0.01, 0.5), seed + number)
            )
            assert set(tally.failures) <= {
                "ConnectionError",
                "ConnectionResetError",
                "ConnectionRefusedError",
            }
            decided |= tally.decided
            rewarded |= tally.rewarded
            if number % 10 == 9 or number == kills - 1:
                _check(path, decided, rewarded)
    finally:
        host.kill()
        host.communicate()
    return len(decided), len(rewarded)


def _check(path: Path, decided: set[str], rewarded: set[str]) -> None:
    time.sleep(0.05)
    with opened(path) as store:
        ranks: Counter[str] = Counter()
        learned: Counter[str] = Counter()
        for _, record in flatten(store.read()):
            if isinstance(record, Rank):
                ranks[record.event] += 1
            elif isinstance(record, Reward) and record.outcome == "applied":
                learned[record.event] += 1
        assert not decided - ranks.keys()
        assert not rewarded - learned.keys()
        assert max(ranks.values()) == 1
        assert max(learned.values(), default=1) == 1
        state = snapshot.dump(recover(store))
        assert state == snapshot.dump(recover(store, from_empty=True))


def test_twenty_kills_under_load_lose_nothing_acknowledged(tmp_path: Path) -> None:
    decided, rewarded = _kill_often(tmp_path / "log.db", 20, seed=1)
    assert decided > 20  # however slow the machine
    assert rewarded > 5


@pytest.mark.slow
def test_two_hundred_kills_under_load_lose_nothing_acknowledged(tmp_path: Path) -> None:
    decided, rewarded = _kill_often(tmp_path / "log.db", 200, seed=2)
    assert decided > 200  # however slow the machine
    assert rewarded > 50
