"""Faults of PostgreSQL and of the way to it, made on purpose under load on several services."""

import asyncio
import os
import random
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psycopg

from coterie.bench.service.loadtest import request_bytes
from coterie.service.log.store import open_to_read
from coterie.service.snapshots import snapshot
from tests.service import postgres
from tests.service.crash_press import Request, Sender, connection
from tests.service.log import test_crash as crash

TIMEOUT = 1.5  # seconds after which a client turns to another service
LONG = 6.0  # the same for erasures and changes of policy, which read the whole log
SILENT = 3.0  # seconds for which nobody turns to a service that did not answer in time
BEAT = 0.01  # seconds between two questions to the control
CONNECTIONS = 24  # that the server takes
TABLES = ("coterie_log", "coterie_head", "coterie_leases", "coterie_users")


class Proxy:
    """Passes bytes on between clients and a server, unless it is cut: then it is silent and closes nothing."""

    def __init__(self, host: str, port: int) -> None:
        self._to = (host, port)
        self._open = threading.Event()
        self._open.set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Pass nothing on."""
        self._open.clear()

    def mend(self) -> None:
        """Pass on what has come meanwhile, and what comes."""
        self._open.set()

    def close(self) -> None:
        """Take no more connections."""
        self._open.set()
        self._listening.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._listening.accept()
                threading.Thread(target=self._pass_on, args=(here,), daemon=True).start()

    def _pass_on(self, here: socket.socket) -> None:
        with here, suppress(OSError):
            self._open.wait()
            with socket.create_connection(self._to) as there:
                others = {here: there, there: here}
                while True:
                    for ready in select.select(list(others), [], [])[0]:
                        data = ready.recv(1 << 16)
                        self._open.wait()
                        if not data:
                            return
                        others[ready].sendall(data)


class Services:
    """Services on one store, each with its own way to the database; one that has ended is started again."""

    def __init__(
        self, start: crash.Start, store: str, server: postgres.Server | None = None, count: int = 2
    ) -> None:
        self.store = store
        self._server = server
        self._start = start
        self.proxies = [Proxy("127.0.0.1", server.port) for _ in range(count)] if server is not None else []
        self.ports = [0] * count
        self.children = [0] * count
        self.restarts = 0
        self._turn = 0
        for place in range(count):
            self._begin(place)

    @property
    def server(self) -> postgres.Server:
        """The database's."""
        assert self._server is not None
        return self._server

    def kill(self, place: int) -> None:
        """Kill one, and wait until it is gone."""
        child = self.children[place]
        os.kill(child, signal.SIGKILL)
        while Path(f"/proc/{child}").exists():
            time.sleep(0.002)

    def _begin(self, place: int) -> None:
        store = self.store
        if self.proxies:
            store = store.replace(f":{self.server.port}/", f":{self.proxies[place].port}/")
        port, self.children[place] = self._start(store)
        crash._wait_for(port, self.children[place])
        self.ports[place] = port  # from here on requests are sent to it, as by a balancer

    def begin_again(self) -> None:
        """Do what a supervisor does."""
        for place, child in enumerate(self.children):
            if not Path(f"/proc/{child}").exists():
                self.restarts += 1
                self._begin(place)

    def states(self) -> list[str]:
        """Return what each says of itself."""
        found = []
        for port in self.ports:
            try:
                found.append(httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=5).json()["status"])
            except httpx.TransportError as error:
                found.append(f"no answer: {type(error).__name__}")
        return found

    def whole(self) -> int:
        """Wait until all serve, and return the place of one of them."""
        end = time.monotonic() + crash.PATIENCE
        while True:
            self.begin_again()
            states = self.states()
            if set(states) == {"ready"}:
                self._turn += 1
                return self._turn % len(states)
            assert time.monotonic() < end, states
            time.sleep(0.05)

    def stop(self) -> list[bytes]:
        """Stop all, one after the other, and return the whole state of each, which it keeps as a snapshot."""
        end = time.monotonic() + crash.PATIENCE
        while len(found := {self._figures(port) for port in self.ports}) > 1 or found.pop()[1]:
            assert time.monotonic() < end, f"positions and open waits are {found}"
            time.sleep(0.1)
        states = []
        for child in self.children:
            os.kill(child, signal.SIGTERM)
            while Path(f"/proc/{child}").exists():
                assert time.monotonic() < end, "the service did not stop"
                time.sleep(0.01)
            with closing(open_to_read(self.store)) as opened:
                position, row = next(opened.snapshots())
                assert position == opened.end()
                states.append(snapshot.dump(snapshot.restore(row, None, opened.piece)))
        return states

    @staticmethod
    def _figures(port: int) -> tuple[int, int]:
        found = httpx.get(f"http://127.0.0.1:{port}/v1/statistics", timeout=crash.PATIENCE).json()
        return found["logRecords"], found["waiting"]

    def close(self) -> None:
        """Kill all."""
        for proxy in self.proxies:
            proxy.close()
        for child in self.children:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


class Ranks(Sender):
    """A sender of ranks and rewards only: what must be answered soon."""

    def _make(self) -> Request:
        while (made := super()._make()).kind not in ("rank", "reward"):
            pass
        return made


class Load:
    """Senders in a thread: each sends a request to one service or another until one has acknowledged it."""

    def __init__(self, pair: Services, senders: list[Sender]) -> None:
        self.acknowledged = 0.0  # when the last request was
        self.failed: BaseException | None = None
        self.refused: dict[int, str] = {}  # the last of each sender, with the time
        self._pair, self._senders = pair, senders
        self._silent = [0.0] * len(pair.ports)  # until when nobody turns to a service that did not answer
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and raise what went wrong."""
        self._stop.set()
        self._thread.join()
        if self.failed is not None:
            raise self.failed

    def after(self, moment: float, patience: float) -> float:
        """Return how many seconds after a moment the first request was acknowledged."""
        while self.acknowledged <= moment:
            if self.failed is not None:
                raise self.failed
            if time.monotonic() > moment + patience:
                raise TimeoutError(
                    f"no answer in {patience} s after {moment}: {self._pair.states()}, {self.refused}"
                )
            time.sleep(0.01)
        return self.acknowledged - moment

    def _run(self) -> None:
        async def go() -> None:
            async with asyncio.TaskGroup() as group:
                for sender in self._senders:
                    group.create_task(self._work(sender))

        try:
            asyncio.run(go())
        except BaseException as error:
            self.failed = error

    async def _work(self, sender: Sender) -> None:
        place = sender.number % len(self._pair.ports)
        while not self._stop.is_set():
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(TIMEOUT):
                    opened = connection(self._pair.ports[place])
                    client = await opened.__aenter__()
                try:
                    while not self._stop.is_set() and await self._ask(sender, client, place):
                        if sender.rng.random() < 0.2:
                            break
                finally:
                    await opened.__aexit__(None, None, None)
            for _ in self._silent:
                place = (place + 1) % len(self._silent)
                if self._silent[place] < time.monotonic():
                    break
            await asyncio.sleep(0.02)

    async def _ask(self, sender: Sender, client: Any, place: int) -> bool:
        """Send what the sender has to send, and return whether it was acknowledged."""
        request = sender.next()
        sender.send(request)
        body = b"" if request.body is None else msgspec.json.encode(request.body)
        host = f"127.0.0.1:{self._pair.ports[place]}"
        wire = request_bytes(request.method, request.path, body, host, None)
        try:
            async with asyncio.timeout(LONG if request.kind in ("forget", "configure") else TIMEOUT):
                status, answer = await client.ask(wire)
        except (OSError, TimeoutError) as error:
            status, answer = 503, repr(error).encode()
            if isinstance(error, TimeoutError):
                self._silent[place] = time.monotonic() + SILENT
        if status == 503 or b'"busy"' in answer:  # the latter while another sender's policy learns the log
            self.refused[sender.number] = (
                f"{time.monotonic()} {self._pair.ports[place]} {request.kind} {answer!r}"
            )
            request.sent = True
            return False
        sender.answered(request, status, answer)
        self.acknowledged = time.monotonic()
        return True


class Control:
    """A service on a store of its own, asked again and again: it tells how fast the machine is just now.

    A pause of the others is counted in its answers, at most one per `BEAT`. If the machine does other things, it
    answers less often, too; if it answers and the others do not, they wait for something.
    """

    def __init__(self, start: crash.Start, store: str, load: Load) -> None:
        self.longest = 0.0  # seconds without an acknowledgement by the others
        self._load = load
        self._stop = threading.Event()
        self._service = Services(start, store, count=1)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        """Stop asking, and kill the service."""
        self._stop.set()
        self._thread.join()
        self._service.close()

    def _run(self) -> None:
        url = f"http://127.0.0.1:{self._service.ports[0]}"
        answers, seen = 0, self._load.acknowledged
        with httpx.Client(base_url=url, timeout=crash.PATIENCE) as client:
            while not self._stop.wait(BEAT):
                answer = client.post("/v1/rank", json={"actions": [{"id": "a"}, {"id": "b"}]})
                assert answer.status_code == 201, answer.text
                now = self._load.acknowledged
                answers, seen = answers + 1 if now == seen else 0, now
                self.longest = max(self.longest, answers * BEAT)


@contextmanager
def _admin(pair: Services) -> Iterator[psycopg.Connection[Any]]:
    """Yield a session of somebody else, beside the services."""
    with closing(psycopg.connect(pair.store, autocommit=True, application_name="admin")) as session:
        session.execute("SET default_transaction_read_only = off")
        yield session


def _backends(session: psycopg.Connection[Any]) -> list[int]:
    query = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
        "AND backend_type = 'client backend' AND application_name <> 'admin'"
    )
    return [pid for (pid,) in session.execute(query).fetchall()]


Fault = Callable[
    [Services, random.Random, float], None
]  # with its longest time; returns when the fault has ended


def cancel(pair: Services, rng: random.Random, longest: float) -> None:
    """Cancel every statement, again and again for a while."""
    end = time.monotonic() + rng.uniform(0, longest)
    with _admin(pair) as session:
        while time.monotonic() < end:
            for pid in _backends(session):
                session.execute("SELECT pg_cancel_backend(%s)", (pid,))


def terminate(pair: Services, rng: random.Random, longest: float) -> None:
    """End every session, or every second one."""
    with _admin(pair) as session:
        for pid in _backends(session)[:: rng.choice((1, 2))]:
            session.execute("SELECT pg_terminate_backend(%s)", (pid,))


def cut_off(services: Services, place: int) -> None:
    """End the sessions of one service."""
    files = Path(f"/proc/{services.children[place]}/fd")
    mine = {os.readlink(file) for file in files.iterdir() if file.exists() or file.is_symlink()}
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ports = [int(line[1].partition(":")[2], 16) for line in lines if f"socket:[{line[9]}]" in mine]
    with _admin(services) as session:
        ended = session.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE client_port = ANY(%s)", (ports,)
        ).fetchall()
    assert ended


def read_only(pair: Services, rng: random.Random, longest: float) -> None:
    """Take no writes for some seconds."""
    with _admin(pair) as session:
        for value in ("on", "off"):
            session.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
            session.execute("SELECT pg_reload_conf()")
            if value == "on":
                time.sleep(rng.uniform(0, longest))


def restart(pair: Services, rng: random.Random, longest: float) -> None:
    """Stop the server as a crash does, and start it again."""
    pair.server.stop()
    time.sleep(rng.choice((0.0, rng.uniform(0, longest))))
    pair.server.start()


def lock(pair: Services, rng: random.Random, longest: float) -> None:
    """Lock tables that the services need, for some seconds."""
    tables = ", ".join(rng.sample(TABLES, rng.randrange(1, len(TABLES) + 1)))
    with _admin(pair) as session:
        while True:
            with suppress(psycopg.errors.DeadlockDetected), session.transaction():
                session.execute(f"LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE")
                time.sleep(rng.uniform(0, longest))
                return


def freeze_service(pair: Services, rng: random.Random, longest: float) -> None:
    """Stop one process; the other one has to serve meanwhile."""
    child = pair.children[pair.whole()]
    with _stopped([child]):
        time.sleep(rng.uniform(0, longest))


def freeze_server(pair: Services, rng: random.Random, longest: float) -> None:
    """Stop the server's processes for the services, or some of them."""
    with _admin(pair) as session:
        found = _backends(session)
    with _stopped(rng.sample(found, rng.randrange(1, len(found) + 1))):
        time.sleep(rng.uniform(0, longest))


def cut(pair: Services, rng: random.Random, longest: float) -> None:
    """Cut the way of one service, or of both; what was on its way arrives later."""
    place = pair.whole()
    proxies = [pair.proxies[place]] if rng.random() < 0.7 else pair.proxies
    for proxy in proxies:
        proxy.cut()
    time.sleep(rng.uniform(0, longest))
    for proxy in proxies:
        proxy.mend()


def fill(pair: Services, rng: random.Random, longest: float) -> None:
    """Use up all connections, so that services that lose theirs get none."""
    taken: list[psycopg.Connection[Any]] = []
    try:
        with _admin(pair) as session:
            for pid in _backends(session):
                session.execute("SELECT pg_terminate_backend(%s)", (pid,))
            with suppress(psycopg.OperationalError):
                while True:
                    taken.append(psycopg.connect(pair.store, application_name="admin"))
            time.sleep(rng.uniform(0, longest))
    finally:
        for one in taken:
            one.close()


@contextmanager
def _stopped(processes: list[int]) -> Iterator[None]:
    stopped = []
    try:
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGSTOP)
                stopped.append(process)
        yield
    finally:
        for process in stopped:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)


FAULTS: tuple[Fault, ...] = (
    cancel,
    terminate,
    read_only,
    restart,
    lock,
    freeze_service,
    freeze_server,
    cut,
    fill,
)
