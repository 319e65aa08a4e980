"""Several services on one store under load: what deciding costs, and what following costs those that do not decide.

First all requests go to one service, so the others only follow its records; then they go to all. Processor time is
counted per process, so the load generator and other programs take no part in it. It is measured without rewards and
with one per rank: the difference is what a reward costs. Meanwhile one client asks at one service, and then looks for
its decision at another one.
"""

import asyncio
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from coterie.arrays import JsonObject
from coterie.bench.service.loadtest import (
    SERVERS,
    LoadConnection,
    LoadPlan,
    LoadTally,
    ServerProcess,
    press,
    request_bytes,
    warm_store,
)

SETTLING = 0.5  # seconds of load before it is measured


@contextmanager
def servers(count: int, kind: str = "serve", *options: str) -> Iterator[list[ServerProcess]]:
    """Start servers, and kill them at the end."""
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            found.append(server := ServerProcess([*SERVERS[kind], *options], pinned=False))
            stack.callback(server.kill)
            server.wait()
        yield found


def measured(
    loaded: Sequence[ServerProcess], every: Sequence[ServerProcess], plan: LoadPlan
) -> tuple[LoadTally, list[float]]:
    """Load some of the servers at once; return the answers, and the processor time of every server."""

    asyncio.run(_press_all(loaded, msgspec.structs.replace(plan, seconds=SETTLING)))
    before = [server.cpu_seconds() for server in every]
    tally = asyncio.run(_press_all(loaded, plan))
    return tally, [server.cpu_seconds() - start for server, start in zip(every, before, strict=True)]


async def _press_all(loaded: Sequence[ServerProcess], plan: LoadPlan) -> LoadTally:
    total = LoadTally()
    each = msgspec.structs.replace(plan, connections=max(1, plan.connections // len(loaded)))
    for tally in await asyncio.gather(*(press(server.url, each) for server in loaded)):
        total.latencies += tally.latencies
        total.failures += tally.failures
        total.seconds = max(total.seconds, tally.seconds)
    return total


async def _read_elsewhere(every: Sequence[ServerProcess], plan: LoadPlan) -> LoadTally:
    """Load all servers; meanwhile decide at one and read the decision at the next, whose latencies are returned."""
    loop, found = asyncio.get_running_loop(), LoadTally()
    pressing = asyncio.create_task(_press_all(every, plan))
    clients = []
    for server in every:
        host, _, port = server.url.removeprefix("http://").rpartition(":")
        clients.append(((await loop.create_connection(LoadConnection, host, int(port)))[1], f"{host}:{port}"))
    prefix, count = f"read-{time.time_ns()}", 0
    while not pressing.done():
        event, count = f"{prefix}-{count}", count + 1
        (first, here), (second, there) = clients[count % len(every)], clients[(count + 1) % len(every)]
        body = b'{"eventId":"%b","actions":[{"id":"a"},{"id":"b"}]}' % event.encode()
        status, _ = await first.ask(request_bytes("POST", "/v1/rank", body, here, plan.key))
        asked = loop.time()
        if status == 201:
            status, _ = await second.ask(request_bytes("GET", f"/v1/events/{event}", b"", there, plan.key))
        if status == 200:
            found.latencies.append(loop.time() - asked)
        else:
            found.failures[str(status)] += 1
    for client, _ in clients:
        client.transport.close()
    found.failures += (await pressing).failures
    return found


def run_many(
    plan: LoadPlan, counts: Sequence[int], store: str | None, durability: str, warm: int = 0
) -> list[JsonObject]:
    """Return a row for each number of services on one store: a new file, or an address that holds an empty store."""
    part = msgspec.structs.replace(plan, seconds=plan.seconds / (5 * len(counts) + 1))
    with servers(1, "bare") as (bare,):
        tally, (used,) = measured([bare], [bare], msgspec.structs.replace(part, rewards=0.0))
    plain = used / max(1, len(tally.latencies))
    rows: list[JsonObject] = []
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder) / "first.db"
        if warm:
            warm_store(store or str(first), plan, warm)
        for count in counts:
            place = store or str(Path(folder) / f"{count}.db")
            if warm and store is None:
                shutil.copy(first, place)
            with servers(count, "serve", "--store", place, "--durability", durability) as every:
                rows.append(_row(every, part, plain))
    one = next((row["cpu_us_a_rank"] for row in rows if row["workers"] == 1), None)
    for row in rows:
        # How many more ranks so many cores could answer, if nothing else ran on them.
        row["times_one"] = one and row["workers"] * one / row["cpu_us_a_rank"]
    return rows


def _row(every: list[ServerProcess], plan: LoadPlan, plain: float) -> JsonObject:
    """Measure services that share a store; `plain` is a bare endpoint's processor time for a rank."""
    deciding, following = [], []
    for rewards in (0.0, 1.0):
        tally, used = measured(every[:1], every, msgspec.structs.replace(plan, rewards=rewards))
        ranks = max(1, len(tally.latencies))
        deciding.append(used[0] / ranks)
        following.append(sum(used[1:]) / max(1, len(every) - 1) / ranks)
    total, used = measured(every, every, plan)
    rank, reward = deciding[0], deciding[1] - deciding[0]
    alone = len(every) == 1
    elsewhere = LoadTally() if alone else asyncio.run(_read_elsewhere(every, plan))
    return {
        "workers": len(every),
        "ranks_a_second": total.rate,
        "failures": sum(total.failures.values()) + sum(elsewhere.failures.values()),
        "cpu_us_a_rank": 1e6 * sum(used) / max(1, len(total.latencies)),
        "deciding_a_rank_us": 1e6 * rank,
        "deciding_a_reward_us": 1e6 * reward,
        "following_a_rank": None if alone else following[0] / rank,
        "following_a_reward": None if alone else (following[1] - following[0]) / reward,
        "read_elsewhere_p50_ms": None if alone else elsewhere.percentile(0.5),
        "read_elsewhere_p99_ms": None if alone else elsewhere.percentile(0.99),
        "cost_ratio_to_bare": rank / plain,
    }
