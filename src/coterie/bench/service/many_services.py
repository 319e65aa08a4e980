"""Several services on one store under load: what deciding costs, and what following costs those that do not decide.

First all requests go to one service, so the others only follow its records; then they go to all. Processor time is
counted per process, so the load generator and other programs take no part in it. It is measured without rewards and
with one per rank: the difference is what a reward costs.
"""

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from coterie.bench.service.loadtest import SERVERS, Plan, Server, Tally, press

SETTLING = 0.5  # seconds of load before it is measured


@contextmanager
def servers(count: int, kind: str = "serve", *options: str) -> Iterator[list[Server]]:
    """Start servers, and kill them at the end."""
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            found.append(server := Server([*SERVERS[kind], *options], pinned=False))
            stack.callback(server.kill)
            server.wait()
        yield found


def measured(loaded: Sequence[Server], every: Sequence[Server], plan: Plan) -> tuple[Tally, list[float]]:
    """Load some of the servers at once; return the answers, and the processor time of every server."""

    async def go(part: Plan) -> Tally:
        total = Tally()
        each = msgspec.structs.replace(part, connections=max(1, part.connections // len(loaded)))
        for tally in await asyncio.gather(*(press(server.url, each) for server in loaded)):
            total.latencies += tally.latencies
            total.failures += tally.failures
            total.seconds = max(total.seconds, tally.seconds)
        return total

    asyncio.run(go(msgspec.structs.replace(plan, seconds=SETTLING)))
    before = [server.cpu_seconds() for server in every]
    tally = asyncio.run(go(plan))
    return tally, [server.cpu_seconds() - start for server, start in zip(every, before, strict=True)]


def run_many(
    plan: Plan, counts: Sequence[int], store: str | None, durability: str
) -> list[dict[str, object]]:
    """Return a row for each number of services on one store: a new file, or an address that holds an empty store."""
    part = msgspec.structs.replace(plan, seconds=plan.seconds / (4 * len(counts) + 1))
    with servers(1, "bare") as (bare,):
        tally, (used,) = measured([bare], [bare], msgspec.structs.replace(part, rewards=0.0))
    plain = used / max(1, len(tally.latencies))
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        for count in counts:
            place = store or str(Path(folder) / f"{count}.db")
            with servers(count, "serve", "--store", place, "--durability", durability) as every:
                rows.append(_row(every, part, plain))
    return rows


def _row(every: list[Server], plan: Plan, plain: float) -> dict[str, object]:
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
    return {
        "workers": len(every),
        "ranks_a_second": total.rate,
        "failures": sum(total.failures.values()),
        "cpu_us_a_rank": 1e6 * sum(used) / max(1, len(total.latencies)),
        "deciding_a_rank_us": 1e6 * rank,
        "deciding_a_reward_us": 1e6 * reward,
        "following_a_rank": None if alone else following[0] / rank,
        "following_a_reward": None if alone else (following[1] - following[0]) / reward,
        "cost_ratio_to_bare": rank / plain,
    }
