"""`coterie serve --workers`: processes that share a port and a store."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from coterie.service import workers
from coterie.service.workers import Workers
from tests.service.process import PATIENCE, service

QUESTION = {"user": "ann", "actions": [{"id": "a"}, {"id": "b"}]}


def children(parent: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def ranked(url: str, body: object) -> str:
    """Return the answer, as a client that tries again gets it."""
    while True:
        try:
            found = httpx.post(f"{url}/v1/rank", json=body, timeout=PATIENCE)
        except httpx.TransportError:
            continue  # the worker that was killed had taken the connection
        if found.status_code != 503:  # a worker that is still starting
            assert found.status_code == 201
            return found.text


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")
def test_workers_share_port_and_store_and_one_that_dies_is_started_again(tmp_path: Path) -> None:
    with service("--store", str(tmp_path / "log.db"), "--workers", "3") as running:
        answers = {}
        for k in range(12):
            body = {**QUESTION, "eventId": f"e{k}"}
            found = {ranked(running.url, body) for _ in range(3)}
            assert len(found) == 1
            answers[k] = found.pop()
        before = children(running.process.pid)
        assert len(before) == 3
        os.kill(before[0], signal.SIGKILL)
        end = time.monotonic() + PATIENCE
        while len(now := children(running.process.pid)) < 3 or before[0] in now:
            assert time.monotonic() < end
            time.sleep(0.05)
        for k, text in answers.items():
            body = {**QUESTION, "eventId": f"e{k}"}
            assert ranked(running.url, body) == text
        code, said = running.stop()
    assert code == 0, said
    assert "ended with -9" in said


@pytest.fixture
def _own_signals() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.usefixtures("_own_signals")
def test_after_too_many_deaths_the_parent_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "PAUSE", 0.0)
    assert Workers(2, lambda *_: os._exit(7)).run() == 1


@pytest.mark.usefixtures("_own_signals")
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_signal_just_after_a_fork_ends_that_worker_too(
    monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    """It is blocked in this thread; if another one takes it, Python handles it here all the same."""
    fork = os.fork

    def fork_and_stop() -> int:
        made = fork()
        if made and elsewhere:
            signal.getsignal(signal.SIGTERM)(signal.SIGTERM, None)  # type: ignore[operator, misc]
        elif made:
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        return made

    monkeypatch.setattr(os, "fork", fork_and_stop)
    assert Workers(3, lambda *_: signal.pause()).run() == 0


@pytest.mark.usefixtures("_own_signals")
def test_a_signal_that_another_thread_gets_while_this_one_waits_ends_the_workers() -> None:
    """Then no system call of this thread is interrupted."""
    signal.signal(signal.SIGTERM, lambda *_: None)  # until `run` has handlers of its own

    def send() -> None:
        while len(children(os.getpid())) < len(before) + 2:
            time.sleep(0.01)
        time.sleep(0.1)  # both workers run, and `run` waits
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    before = children(os.getpid())
    sender = threading.Thread(target=send)
    sender.start()
    assert Workers(2, lambda *_: signal.pause()).run() == 0
    sender.join()


@pytest.mark.usefixtures("_own_signals")
def test_a_worker_that_does_not_end_after_a_signal_is_killed() -> None:
    def work(number: int, again: bool) -> None:
        if number == 0:
            os.kill(os.getppid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGSTOP)

    assert Workers(2, work, within=0.5).run() == 1


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux's /proc")
def test_workers_end_when_their_parent_is_killed() -> None:
    parent = os.fork()
    if not parent:
        Workers(2, lambda *_: signal.pause()).run()
        os._exit(0)
    end = time.monotonic() + PATIENCE
    while len(found := children(parent)) < 2:
        assert time.monotonic() < end
        time.sleep(0.01)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    while any(is_running(one) for one in found):
        assert time.monotonic() < end
        time.sleep(0.01)


def is_running(process: int) -> bool:
    """Return whether a process runs, and is not one that nobody has waited for."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
