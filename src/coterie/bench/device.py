"""What decisions cost on a device, for `coterie bench cuda`.

Times are elapsed times from numbers on the host to numbers on the host: medians of many calls, after half a second of
calls that do not count. Compiling is measured apart.
Beside each stands the time in which the device's memory could be read, at the speed of a copy in the same run.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coterie.arrays import Floats
from coterie.engines.cuda import UserBlocks
from coterie.engines.device import UserColumns
from coterie.engines.runs import STEP, JointRounds, JointRuns
from coterie.models import View

FEATURES, CANDIDATES, BATCH = 25, 25, 64
RUNS, RUN_USERS = 105, 1892  # 21 values of α, five times, on LastFM
ALPHA = 0.1
SCALE = ALPHA * 3.7  # α·√log(1+t) at about a million payoffs
PIECE = 4096
WARM = 0.5  # seconds of calls before those that count


@dataclass(frozen=True)
class Cost:
    """One thing that was measured."""

    name: str
    seconds: float
    limit: float | None = None  # seconds
    memory: float | None = None  # seconds that reading and writing what must be read and written takes
    compiling: float | None = None  # seconds before the first answer
    users: int | None = None  # whom it is about, so that one core can be asked the same
    note: str = ""


@dataclass(frozen=True)
class Amounts:
    """How much is measured."""

    users: int = 1_000_000
    many: int = 10_000_000
    block: int = 1 << 20
    times: int = 200
    runs: int = RUNS
    run_users: int = RUN_USERS
    joint_rounds: int = 3_000


class JointWorld(NamedTuple):
    """The items, and the rounds of each run."""

    table: Floats  # (items, features)
    rounds: JointRounds


def make_world(runs: int, users: int, features: int, candidates: int, rounds: int, seed: int) -> JointWorld:
    """Return rounds of users in ten groups with equal tastes; a payoff is 1 or 0."""
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(1_000, features))
    table /= 1.0001 * np.linalg.norm(table, axis=1, keepdims=True)
    likes = table @ rng.normal(size=(10, features)).T > 1.0  # (items, groups)
    who = rng.integers(users, size=(rounds, runs)).astype(np.int32)
    shown = rng.integers(len(table), size=(rounds, runs, candidates)).astype(np.int32)
    payoffs = likes[shown, (who % 10)[..., None]].astype(np.float64)
    return JointWorld(table, JointRounds(who, shown, payoffs, np.full(who.shape, -1, np.int32)))


QUICK = Amounts(4_000, 8_000, 1_024, 5, 6, 200, 500)


def costs(device: Any, sizes: Amounts, on_progress: Callable[[str], None]) -> Iterator[Cost]:
    """Measure everything, the device's memory first."""
    with jax.enable_x64(True):
        on_progress("memory speed")
        speed = memory_speed(device, 2 * sizes.users * FEATURES * 8 * 5)
        yield Cost(f"a copy in the device's memory: {speed / 1e9:,.0f} GB/s", 1e9 / speed, note="a gigabyte")
    on_progress(f"{sizes.users:,} users")
    blocks = filled(device, sizes.users, sizes.block)
    yield from decisions(blocks, sizes, sizes.users, speed, on_progress)
    on_progress("growth")
    yield growth(blocks, sizes.users)
    on_progress("runs side by side")
    yield from joint(device, sizes, speed)
    on_progress(f"{sizes.many:,} users")
    grow(blocks, sizes.users, sizes.many)
    yield from decisions(blocks, replace(sizes, users=0, times=20), sizes.many, speed, on_progress)


def memory_speed(device: Any, size: int) -> float:
    """Return bytes a second of a copy: read and written."""
    source = jax.device_put(jnp.zeros(max(size, 1024) // 8), device)
    copy = jax.jit(lambda array: array + 1.0)
    made = copy(source).block_until_ready()

    def ten() -> None:
        for _ in range(10):
            copy(source)
        copy(made).block_until_ready()

    return float(11 * 2 * source.nbytes / median(5, ten))


def decisions(
    blocks: UserBlocks, sizes: Amounts, users: int, speed: float, on_progress: Callable[[str], None]
) -> Iterator[Cost]:
    """Measure decisions, alone and in batches, payoffs alone and shared by all."""
    full = users == sizes.users
    rng = np.random.default_rng(1)
    shown = [vectors(rng, CANDIDATES) for _ in range(BATCH)]
    rows = rng.integers(users, size=BATCH).tolist()
    reading = users * 8 * (blocks.user_bytes // 12) / speed
    who = f"{users:,} users"

    def timed(name: str, times: int, work: Callable[[], Any], each: int = 1, **given: Any) -> Cost:
        on_progress(f"{who}: {name}")
        start = time.perf_counter()
        work()
        compiling = time.perf_counter() - start
        warm_up(work)
        seconds = median(times, work) / each
        return Cost(f"{name}, {who}", seconds, compiling=compiling - seconds * each, users=users, **given)

    yield timed(
        "a decision", sizes.times, lambda: decide(blocks, users, rows[:1], shown[:1]),
        limit=1.3e-3 if full else None, memory=reading,
    )  # fmt: skip
    yield timed(
        f"a decision, in batches of {BATCH}", max(3, sizes.times // 10),
        lambda: decide(blocks, users, rows, shown), BATCH,
        limit=0.65e-3 if full else None, memory=reading / BATCH,
    )  # fmt: skip

    def alone() -> None:
        blocks.learn(rows[0], shown[0][0], 0.5)
        blocks.wait()

    yield timed("a payoff that one user learns", sizes.times, alone)
    everybody = View(np.zeros(1), np.full(1, np.inf))

    def shared() -> None:
        learners = blocks.share(shown[1][0], everybody, SCALE, np.inf, rows[0], 0.5)
        blocks.wait()
        assert learners == users

    # Read to find who learns, then read and written with what rounding lost.
    yield timed(
        "a payoff that all users learn", max(3, sizes.times // 10), shared,
        limit=4e-3 if full else None, memory=reading + 2 * users * blocks.user_bytes / speed,
    )  # fmt: skip


def decide(blocks: UserBlocks, users: int, rows: list[int], shown: list[Floats]) -> list[int]:
    """Decide for some of `users`, as `CAB.choose_many` does."""
    asking = np.repeat(rows, [len(x) for x in shown])
    _, _, members, estimates, spreads = blocks.look(asking, np.concatenate(shown), SCALE, users)
    scores = ((estimates + SCALE * spreads) / members).reshape(len(rows), -1)
    best: list[int] = (scores.max(1, keepdims=True) - scores < 1e-9).argmax(1).tolist()
    return best


def growth(blocks: UserBlocks, users: int) -> Cost:
    """Measure the longest pause while users come for whom there is no room yet."""
    longest, rng = 0.0, np.random.default_rng(2)
    x = vectors(rng, 1)[0]
    for block in range(4):
        row = blocks.room
        start = time.perf_counter()
        blocks.reserve(row + 1)
        blocks.learn(row, x, 0.5)
        blocks.wait()
        longest = max(longest, time.perf_counter() - start)
        if block == 0:
            longest = 0.0  # the first user of all is compiled for
    return Cost(f"the longest pause of growth beyond {users:,} users", longest, limit=50e-3)


def joint(device: Any, sizes: Amounts, speed: float) -> Iterator[Cost]:
    """Measure joint rounds of many runs in a world like LastFM: at the start, later, and on average."""
    world = make_world(sizes.runs, sizes.run_users, FEATURES, CANDIDATES, sizes.joint_rounds, seed=3)
    alpha = np.float64(0.01) * (np.arange(sizes.runs, dtype=np.float64) % 21)
    reading = sizes.runs * sizes.run_users * 8 * (FEATURES * (FEATURES + 1) // 2 + FEATURES) / speed
    runs = JointRuns(
        device, alpha.tolist(), [0.2] * sizes.runs, sizes.run_users, FEATURES, sizes.joint_rounds
    )
    with jax.enable_x64(True):
        table = jax.device_put(world.table, device)
    done, times, learners = np.zeros(sizes.runs, np.int32), [], []
    for first in range(0, sizes.joint_rounds, STEP):
        rounds = JointRounds(*(part[first : first + STEP] for part in world.rounds))
        start = time.perf_counter()
        played = runs.play_joint(rounds, done, table)
        times.append((time.perf_counter() - start) / STEP)
        learners.append(float(played.updated.sum(1).mean()))
        done += played.kept.sum(0, dtype=np.int32)
    compiling = STEP * (times[0] - times[1])
    which = {"early": 1, "late": -1} if len(times) > 2 else {"late": -1}
    for name, place in which.items():
        yield Cost(
            f"a joint round of {sizes.runs} runs, {name}",
            times[place],
            limit=0.3e-3 if sizes.runs == RUNS else None,
            memory=reading,
            compiling=compiling,
            note=f"{learners[place]:,.0f} users learn in it",
        )


def filled(device: Any, users: int, block: int) -> UserBlocks:
    """Return blocks with users who have learned; 4,096 different ones, over and over."""
    blocks = UserBlocks(FEATURES, device, block)
    grow(blocks, 0, users)
    return blocks


def grow(blocks: UserBlocks, first: int, users: int) -> None:
    """Fill the rows from about `first` up to `users`."""
    host = learned(np.random.default_rng(0), min(PIECE, blocks.size))
    step = host.weights.shape[1]
    with jax.enable_x64(True):
        there = jax.device_put(host, blocks.device)
    blocks.reserve(users)
    for start in range(first // step * step, users, step):
        left = users - start
        blocks.write(start, there if left >= step else UserColumns(*(part[:, :left] for part in host)))
    blocks.wait()


def learned(rng: np.random.Generator, count: int) -> UserColumns:
    """Return users who have learned five payoffs each, as columns."""
    x = vectors(rng, 5 * count).reshape(count, 5, FEATURES)
    payoffs = rng.integers(2, size=(count, 5)).astype(np.float64)
    inverse = np.linalg.inv(np.eye(FEATURES) + np.einsum("uka,ukb->uab", x, x))
    weights = np.einsum("uab,uk,ukb->ua", inverse, payoffs, x)
    row, column = np.triu_indices(FEATURES)
    pairs = inverse[:, row, column].T.copy()
    return UserColumns(
        pairs, weights.T, np.zeros(pairs.shape, np.float32), np.zeros(weights.T.shape, np.float32)
    )


def vectors(rng: np.random.Generator, count: int) -> Floats:
    """Return contexts of norm 1."""
    x = rng.normal(size=(count, FEATURES))
    found: Floats = x / (1.0001 * np.linalg.norm(x, axis=1, keepdims=True))
    return found


def warm_up(work: Callable[[], Any]) -> None:
    """Call until the device's clock has risen."""
    end = time.perf_counter() + WARM
    while time.perf_counter() < end:
        work()


def median(times: int, work: Callable[[], Any]) -> float:
    """Return the median time of a call, in seconds."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def machine(device: Any) -> dict[str, Any]:
    """Return what a reader needs to place the numbers."""
    stats = device.memory_stats() or {}
    return {
        "device": device.device_kind,
        "memory": stats.get("bytes_limit"),
        "most used": stats.get("peak_bytes_in_use"),
        "python": sys.version.split()[0],
        "jax": jax.__version__,
        "numpy": np.__version__,
    }
