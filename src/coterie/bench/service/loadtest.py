"""A load test: throughput, latencies, and whether any acknowledged decision or reward was lost."""

import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit
from urllib.request import urlopen

import msgspec
from msgspec import Struct

from coterie.arrays import JsonObject
from coterie.data.logs.records import Rank, Reward, ShownAction, flatten, pack
from coterie.data.logs.rules import Config
from coterie.errors import ParameterError
from coterie.service.core.bandit import Bandit
from coterie.service.core.encoding import shown
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.log.store import Append, open_store
from coterie.service.snapshots.saving import save_now

MOST_CONNECTIONS = 256
MOST_SECONDS = 600.0

# The modules that serve: the service, and the endpoint without a service behind it.
SERVERS = {"serve": ["coterie.cli", "serve"], "bare": ["coterie.bench.service.baseline"]}

LISTENING = re.compile(r"listening on (http\S+)\n")  # the first line that a server prints

Dialect = Literal["native", "personalizer"]
PATHS: dict[Dialect, str] = {"native": "/v1", "personalizer": "/personalizer/v1.0"}


class LoadPlan(Struct, frozen=True):
    """The requests to send."""

    seconds: float = 10.0
    connections: int = 32
    users: int = 10_000
    actions: int = 20
    rewards: float = 0.5  # the share of decisions that get a reward
    seed: int = 0
    key: str | None = None
    dialect: Dialect = "native"  # the API
    features: bool = False  # whether ranks have 6 context features and 5 features per action, or ids only
    ranks: int = 0  # the most that each connection sends; 0 is no limit


@dataclass
class LoadTally:
    """The answers."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)  # of ranks, seconds
    decided: set[str] = field(default_factory=set)  # acknowledged
    rewarded: set[str] = field(default_factory=set)  # acknowledged as applied
    failures: Counter[str] = field(default_factory=Counter)

    @property
    def rate(self) -> float:
        """Ranks per second."""
        return len(self.latencies) / self.seconds if self.seconds else 0.0

    def percentile(self, share: float) -> float:
        """Return a quantile of the latencies of ranks, in milliseconds."""
        ordered = sorted(self.latencies)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


class LoadConnection(asyncio.Protocol):
    """One connection with one request at a time. Parses only HTTP answers with a content length."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self._data = b""
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self.head = b""  # status and headers of the last answer

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
            self.head = self._data[:head]
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
    """Return the bytes of a request."""
    secret = f"x-api-key: {key}\r\n" if key else ""
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n{secret}"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def action_features(k: int) -> list[JsonObject]:
    """Return the five features of an action."""
    texts = {"genre": f"genre-{k % 7}", "tone": f"tone-{k % 3}"}
    return [{**texts, "price": k / 4, "fresh": k % 2 == 0, "size": {"pages": k}}]


def context_features(k: int) -> list[JsonObject]:
    """Return one of a thousand contexts of six features, other than the user."""
    place = {"country": f"country-{k % 10}", "city": f"city-{k % 50}"}
    when = {"hour": k % 24, "weekday": f"day-{k % 7}"}
    return [{"device": f"device-{k % 4}", **when, "place": place, "load": k / 1000}]


CONTEXTS = 1000


def rank_writer(plan: LoadPlan) -> Callable[[int, str], bytes]:
    """Return a function that writes the body of a rank for a user and an event."""
    native = plan.dialect == "native"
    shown: list[JsonObject] = [{"id": f"item-{k}"} for k in range(plan.actions)]
    contexts = [""]
    if plan.features:
        shown = [{**action, "features": action_features(k)} for k, action in enumerate(shown)]
        contexts = [msgspec.json.encode(context_features(k))[1:-1].decode() for k in range(CONTEXTS)]
    elif not native:
        shown = [{**action, "features": []} for action in shown]
    actions = msgspec.json.encode(shown).decode()

    def write(user: int, event: str) -> bytes:
        around = contexts[zlib.crc32(event.encode()) % len(contexts)]
        if native:
            body = f'{{"user":"user-{user}","eventId":"{event}","actions":{actions},"context":[{around}]}}'
        else:
            comma = "," if around else ""
            known = f'{{"user":{{"id":"user-{user}"}}}}{comma}{around}'
            body = f'{{"contextFeatures":[{known}],"eventId":"{event}","actions":{actions}}}'
        return body.encode()

    return write


async def press(url: str, plan: LoadPlan, tally: LoadTally | None = None) -> LoadTally:
    """Send ranks (and rewards) over several connections, each waiting for its answer; count in `tally` if given."""
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 80
    tally = LoadTally() if tally is None else tally
    loop = asyncio.get_running_loop()
    start = loop.time()
    end = start + plan.seconds
    prefix = f"load-{os.getpid()}-{time.time_ns()}"
    write, path = rank_writer(plan), PATHS[plan.dialect]
    applied = {"native": (200, b'"applied"'), "personalizer": (204, b"x-coterie-reward: applied")}[
        plan.dialect
    ]

    async def work(number: int) -> None:
        rng = random.Random(f"{plan.seed}-{number}")
        _, client = await loop.create_connection(LoadConnection, host, port)
        count = 0
        try:
            while loop.time() < end and not 0 < plan.ranks <= count:
                event = f"{prefix}-{number}-{count}"
                count += 1
                body = write(rng.randrange(plan.users), event)
                request = request_bytes("POST", f"{path}/rank", body, f"{host}:{port}", plan.key)
                asked = loop.time()
                status, _ = await client.ask(request)
                if status != 201:
                    tally.failures[str(status)] += 1
                    continue
                tally.latencies.append(loop.time() - asked)
                tally.decided.add(event)
                if plan.rewards and rng.random() < plan.rewards:
                    value = b'{"value":%d}' % (rng.random() < 0.3)
                    reward = f"{path}/events/{event}/reward"
                    request = request_bytes("POST", reward, value, f"{host}:{port}", plan.key)
                    status, answer = await client.ask(request)
                    if status == applied[0] and applied[1] in client.head + answer:
                        tally.rewarded.add(event)
                    elif status != applied[0]:
                        tally.failures[str(status)] += 1
        except OSError as error:
            tally.failures[type(error).__name__] += 1
        finally:
            client.transport.close()

    await asyncio.gather(*(work(number) for number in range(plan.connections)))
    tally.seconds = loop.time() - start
    return tally


def check_plan(url: str | None, plan: LoadPlan, anywhere: bool) -> None:
    """Raise ParameterError unless the test is limited, and its target is this machine or explicitly allowed."""
    if not 1 <= plan.connections <= MOST_CONNECTIONS or not 0 < plan.seconds <= MOST_SECONDS:
        raise ParameterError(
            f"{plan.connections} connections for {plan.seconds:g} s, expected at most {MOST_CONNECTIONS} "
            f"for at most {MOST_SECONDS:g} s"
        )
    if not 0 <= plan.rewards <= 1:
        raise ParameterError(f"rewards is {plan.rewards:g}, expected a share of the decisions, from 0 to 1")
    if plan.dialect not in PATHS:
        raise ParameterError(f"dialect is {plan.dialect!r}, expected one of {', '.join(PATHS)}")
    host = urlsplit(url).hostname if url else "127.0.0.1"
    if host not in ("127.0.0.1", "localhost", "::1") and not anywhere:
        raise ParameterError(f"{host!r} is not this machine; add --anywhere if it is yours to load")


def lost(store: Path, tally: LoadTally) -> tuple[set[str], set[str]]:
    """Return the acknowledged decisions and rewards that are missing in the log of a stopped service."""
    decided, rewarded = set(tally.decided), set(tally.rewarded)
    with closing(SqliteStore(str(store))) as opened:
        for _, record in flatten(opened.read()):
            if isinstance(record, Rank):
                decided.discard(record.event)
            elif isinstance(record, Reward) and record.outcome == "applied":
                rewarded.discard(record.event)
    return decided, rewarded


class ServerProcess:
    """A server in a separate process, killed with SIGKILL at the end; `pinned` to one core if there are two."""

    def __init__(self, arguments: Sequence[str], pinned: bool = True) -> None:
        if not hasattr(os, "sched_setaffinity"):
            raise ParameterError(
                f"a fresh server is measured on Linux, and this is {sys.platform}: start one and give its --url"
            )
        command = [sys.executable, "-m", *arguments, "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        cores = sorted(os.sched_getaffinity(0))
        if pinned and len(cores) > 1:
            os.sched_setaffinity(self.process.pid, {cores[-1]})
        self.url = ""

    def wait(self, seconds: float = 600.0) -> None:
        """Wait until it says where it listens, and then until it is ready; it may have to compile first."""
        assert self.process.stdout is not None
        found = LISTENING.fullmatch(self.process.stdout.readline())
        if found is None:
            raise ParameterError(f"the server ended with exit code {self.process.wait()}")
        self.url = found[1]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise ParameterError(f"the server ended with exit code {self.process.returncode}")
            if _ready(self.url):
                return
            time.sleep(0.05)
        raise ParameterError(f"the server was not ready within {seconds:g} s")

    def cpu_seconds(self) -> float:
        """Return the processor time it has used, which does not depend on other load."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """Kill it without warning."""
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


def _ready(url: str) -> bool:
    try:
        with urlopen(f"{url}/readyz", timeout=10):
            return True
    except OSError:  # also an answer of 503
        return False


def warm_store(store: str, plan: LoadPlan, payoffs: int) -> None:
    """Fill an empty store with a history of many users and items, so that decisions have a realistic cost."""
    rng = random.Random(plan.seed)
    tastes = [[rng.choice((0.1, 0.3, 0.6)) for _ in range(plan.actions)] for _ in range(4)]
    bandit = Bandit()
    bandit.configure(Config(), 0)
    for _ in range(payoffs):
        user, item = rng.randrange(plan.users), rng.randrange(plan.actions)
        value = float(rng.random() < tastes[user % 4][item])
        action = ShownAction(f"item-{item}")
        if plan.features:
            action = shown(action.id, action_features(item), context_features(rng.randrange(CONTEXTS)))
        bandit.observe(f"user-{user}", action, value, 0)
    with closing(open_store(store)) as opened:
        records, named, gone, _ = bandit.drain()
        opened.append(Append(pack(0, records), named, gone))
        save_now(bandit, opened)


def summary(tally: LoadTally) -> dict[str, object]:
    """Return the numbers of one tally; latencies in milliseconds."""
    return {
        "ranks": len(tally.latencies),
        "ranks_a_second": tally.rate,
        "p50_ms": tally.percentile(0.5),
        "p95_ms": tally.percentile(0.95),
        "p99_ms": tally.percentile(0.99),
        "worst_ms": tally.percentile(1.0),
        "rewards_applied": len(tally.rewarded),
        "failures": dict(tally.failures) or "none",
    }


def run(
    plan: LoadPlan, durability: str = "lose-nothing", rounds: int = 3, warm: int = 0
) -> dict[str, object]:
    """Load a new service and the baseline in turns, and return all numbers."""
    totals = {"serve": LoadTally(), "bare": LoadTally()}
    cpu = {"serve": 0.0, "bare": 0.0}
    ratios = []
    missing = 0
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "load.db"
        if warm:
            warm_store(str(store), plan, warm)
        for number in range(rounds):
            rates = {}
            part = msgspec.structs.replace(plan, seconds=plan.seconds / rounds / 2, seed=plan.seed + number)
            for kind, total in totals.items():
                options = ["--store", str(store), "--durability", durability] if kind == "serve" else []
                bare = kind == "bare"
                server = ServerProcess([*SERVERS[kind], *options])
                try:
                    server.wait()
                    asyncio.run(press(server.url, msgspec.structs.replace(part, seconds=0.5)))
                    before = server.cpu_seconds()
                    sent = msgspec.structs.replace(part, rewards=0.0) if bare else part
                    tally = asyncio.run(press(server.url, sent))
                    cpu[kind] += server.cpu_seconds() - before
                finally:
                    server.kill()
                if not bare:
                    missing += sum(map(len, lost(store, tally)))
                total.latencies += tally.latencies
                total.seconds += tally.seconds
                total.rewarded |= tally.rewarded
                total.failures += tally.failures
                rates[kind] = tally.rate
            ratios.append(rates["bare"] / rates["serve"])
    served, bare_total = totals["serve"], totals["bare"]
    cost = {kind: 1e6 * cpu[kind] / max(1, len(total.latencies)) for kind, total in totals.items()}
    return {
        "dialect": plan.dialect,
        "sent": "6 context features, 5 features an action" if plan.features else "ids",
        "durability": durability,
        "connections": plan.connections,
        "users": plan.users,
        "actions": plan.actions,
        "rewards_a_rank": plan.rewards,
        "payoffs_before": warm,
        **summary(served),
        "lost": missing,
        "cpu_us_a_rank": cost["serve"],
        "bare_ranks_a_second": bare_total.rate,
        "bare_p99_ms": bare_total.percentile(0.99),
        "bare_cpu_us_a_rank": cost["bare"],
        "rate_ratio_to_bare": sorted(ratios)[len(ratios) // 2],
        "cost_ratio_to_bare": cost["serve"] / cost["bare"] if cost["bare"] else float("nan"),
    }
