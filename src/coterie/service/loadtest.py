"""A load test that keeps a ledger: how fast, how slow at worst, and whether anything acknowledged was lost."""

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

from coterie.errors import ParameterError
from coterie.service.records import Rank, Reward, flatten
from coterie.service.sqlite_store import SqliteStore

MOST_CONNECTIONS = 256
MOST_SECONDS = 600.0


class Plan(Struct, frozen=True):
    """What is sent."""

    seconds: float = 10.0
    connections: int = 32
    users: int = 10_000
    actions: int = 20
    rewards: float = 0.0  # how many of the decisions get a reward
    seed: int = 0
    key: str | None = None


@dataclass
class Tally:
    """What came back."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)  # of ranks, seconds
    decided: set[str] = field(default_factory=set)  # acknowledged
    rewarded: set[str] = field(default_factory=set)  # acknowledged as applied
    failures: dict[str, int] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Ranks a second."""
        return len(self.latencies) / self.seconds if self.seconds else 0.0

    def percentile(self, share: float) -> float:
        """Return the latency that `share` of the ranks stayed under, in milliseconds."""
        ordered = sorted(self.latencies)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


class _Client(asyncio.Protocol):
    """One connection with one request under way. Reads just enough HTTP for answers with a length."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self._data = b""
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        head = self._data.find(b"\r\n\r\n")
        if head < 0:
            return
        place = self._data.find(b"content-length: ", 0, head)
        length = int(self._data[place + 16 : self._data.index(b"\r", place)]) if place >= 0 else 0
        if len(self._data) >= head + 4 + length and self._answer is not None and not self._answer.done():
            self._answer.set_result((int(self._data[9:12]), self._data[head + 4 : head + 4 + length]))
            self._data = self._data[head + 4 + length :]

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError("the server closed the connection"))

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self._answer


def request_bytes(method: str, path: str, body: bytes, host: str, key: str | None) -> bytes:
    """Return a request as it goes over the wire."""
    secret = f"x-api-key: {key}\r\n" if key else ""
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n{secret}"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def press(url: str, plan: Plan) -> Tally:
    """Send ranks (and rewards) over several connections, each waiting for its answer."""
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    tally = Tally()
    loop = asyncio.get_running_loop()
    start = loop.time()
    end = start + plan.seconds
    prefix = f"load-{os.getpid()}-{time.time_ns()}"
    actions = ",".join(f'{{"id":"item-{k}"}}' for k in range(plan.actions))

    async def work(number: int) -> None:
        rng = random.Random(f"{plan.seed}-{number}")
        _, client = await loop.create_connection(_Client, host, port)
        count = 0
        try:
            while loop.time() < end:
                event = f"{prefix}-{number}-{count}"
                count += 1
                body = (
                    f'{{"user":"user-{rng.randrange(plan.users)}","eventId":"{event}","actions":[{actions}]}}'
                )
                request = request_bytes("POST", "/v1/rank", body.encode(), f"{host}:{port}", plan.key)
                asked = loop.time()
                status, _ = await client.ask(request)
                if status != 201:
                    tally.failures[str(status)] = tally.failures.get(str(status), 0) + 1
                    continue
                tally.latencies.append(loop.time() - asked)
                tally.decided.add(event)
                if plan.rewards and rng.random() < plan.rewards:
                    value = b'{"value":%d}' % (rng.random() < 0.3)
                    path = f"/v1/events/{event}/reward"
                    status, answer = await client.ask(
                        request_bytes("POST", path, value, f"{host}:{port}", plan.key)
                    )
                    if status == 200 and b'"applied"' in answer:
                        tally.rewarded.add(event)
                    elif status != 200:
                        tally.failures[str(status)] = tally.failures.get(str(status), 0) + 1
        except (ConnectionError, OSError) as error:
            name = type(error).__name__
            tally.failures[name] = tally.failures.get(name, 0) + 1
        finally:
            client.transport.close()

    await asyncio.gather(*(work(number) for number in range(plan.connections)))
    tally.seconds = loop.time() - start
    return tally


def check_plan(url: str | None, plan: Plan, anywhere: bool) -> None:
    """Raise unless the test is bounded, and aimed at this machine or at where one said so."""
    if not 1 <= plan.connections <= MOST_CONNECTIONS or not 0 < plan.seconds <= MOST_SECONDS:
        raise ParameterError(
            f"{plan.connections} connections for {plan.seconds:g} s, expected at most {MOST_CONNECTIONS} "
            f"for at most {MOST_SECONDS:g} s"
        )
    host = urlsplit(url).hostname if url else "127.0.0.1"
    if host not in ("127.0.0.1", "localhost", "::1") and not anywhere:
        raise ParameterError(f"{host!r} is not this machine; add --anywhere if it is yours to load")


def lost(store: Path, tally: Tally) -> tuple[set[str], set[str]]:
    """Return the acknowledged decisions and rewards that the log of a stopped service does not hold."""
    opened = SqliteStore(str(store))
    try:
        decided, rewarded = set(tally.decided), set(tally.rewarded)
        for _, record in flatten(opened.read()):
            if isinstance(record, Rank):
                decided.discard(record.event)
            elif isinstance(record, Reward) and record.outcome == "applied":
                rewarded.discard(record.event)
        return decided, rewarded
    finally:
        opened.close()


class Server:
    """A server in a process of its own, on one core if there are two, killed without warning at the end."""

    def __init__(self, arguments: Sequence[str], pin: bool = True) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        command = [sys.executable, "-m", *arguments, "--port", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        cores = sorted(os.sched_getaffinity(0))
        if pin and len(cores) > 1:
            os.sched_setaffinity(self.process.pid, {cores[-1]})
        self.url = f"http://127.0.0.1:{self.port}"

    def wait(self, seconds: float = 60.0) -> None:
        """Return once it accepts connections."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise ParameterError(f"the server ended with exit code {self.process.returncode}")
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise ParameterError(f"the server did not start within {seconds:g} s")

    def kill(self) -> None:
        """End it as a power cut would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def run(plan: Plan, durability: str = "lose-nothing", rounds: int = 3) -> dict[str, object]:
    """Press a fresh service and a bare endpoint in turns, and return all figures."""
    ours, bare = Tally(), Tally()
    ratios = []
    missing: tuple[set[str], set[str]] = (set(), set())
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "load.db"
        for number in range(rounds):
            part = Plan(
                seconds=plan.seconds / rounds / 2,
                connections=plan.connections,
                users=plan.users,
                actions=plan.actions,
                rewards=plan.rewards,
                seed=plan.seed + number,
            )
            pair = []
            for kind, total in (("serve", ours), ("bare", bare)):
                module = "coterie.service.serve" if kind == "serve" else "coterie.service.bare"
                options = ["--store", str(store), "--durability", durability] if kind == "serve" else []
                server = Server([module, *options])
                try:
                    server.wait()
                    asyncio.run(press(server.url, Plan(seconds=0.5, connections=4, users=plan.users)))
                    tally = asyncio.run(press(server.url, part))
                finally:
                    server.kill()
                if kind == "serve":
                    found = lost(store, tally)
                    missing = (missing[0] | found[0], missing[1] | found[1])
                total.latencies += tally.latencies
                total.seconds += tally.seconds
                for name, count in tally.failures.items():
                    total.failures[name] = total.failures.get(name, 0) + count
                total.decided |= tally.decided
                total.rewarded |= tally.rewarded
                pair.append(tally.rate)
            ratios.append(pair[1] / pair[0])
    return {
        "ranks": len(ours.latencies),
        "rate": ours.rate,
        "p50": ours.percentile(0.5),
        "p95": ours.percentile(0.95),
        "p99": ours.percentile(0.99),
        "worst": ours.percentile(1.0),
        "failures": ours.failures,
        "rewards": len(ours.rewarded),
        "lost": len(missing[0]) + len(missing[1]),
        "bare_rate": bare.rate,
        "bare_p99": bare.percentile(0.99),
        "ratio": sorted(ratios)[len(ratios) // 2],
        "durability": durability,
    }


if __name__ == "__main__":
    print(json.dumps(run(Plan(seconds=float(sys.argv[1]) if len(sys.argv) > 1 else 12.0)), indent=2))
