"""Users' models on a GPU: what decisions, shared payoffs and joint rounds cost, beside memory speed and one core.

Times on the device are elapsed times from numbers on the host to numbers on the host: medians of many calls, after
half a second of calls that do not count. Memory speed is that of a copy in the same run. One core is processor
time of all threads, with fewer users, scaled up: a decision there grows with their number.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from coterie.engines.device import UserColumns, as_tensors, find_device  # first: it says if JAX is missing

# isort: split
import jax
import jax.numpy as jnp
import numpy as np

from coterie.arrays import Floats, JsonObject
from coterie.bench.measuring import Measured, at_most, best_of, no_limit, unit_vectors
from coterie.engines.cuda import UserBlocks
from coterie.engines.runs import STEP, JointRounds, JointRuns
from coterie.models import View, make_models
from coterie.models.files import pack_ids
from coterie.models.protocol import TIE

SUITE = "cuda"
ONE_CORE = 50_000  # users of the models in this process
FEATURES, CANDIDATES, BATCH = 25, 25, 64
NUMBERS = FEATURES * (FEATURES + 3) // 2  # of a user
RUNS = 105  # 21 values of α, five times
SCALE = 0.1 * 3.7  # α·√log(1+t) at about a million payoffs
WARM = 0.5  # seconds of calls before those that count


class Amounts(NamedTuple):
    """How much is measured."""

    users: int = 1_000_000
    many: int = 10_000_000
    block: int = 1 << 20
    times: int = 200
    runs: int = RUNS
    run_users: int = 1892  # as on LastFM
    joint_rounds: int = 3_000


QUICK = Amounts(4_000, 8_000, 1_024, 5, 6, 200, 500)


class Cost(NamedTuple):
    """One thing that was measured."""

    name: str
    seconds: float
    limit: float | None = None  # seconds
    memory: float | None = None  # seconds that reading and writing what must be read and written takes
    users: int = 0  # whom it is about, so that one core can be asked the same
    note: str = ""


def rows(quick: bool, on_progress: Callable[[str], None]) -> Iterator[Measured]:
    """Measure a million users and ten million on the first GPU, and many runs side by side."""
    gpu = find_device(None)
    on_progress("one core")
    core = one_core(2_000 if quick else ONE_CORE)
    for cost in costs(gpu, QUICK if quick else Amounts(), on_progress):
        value = 1e3 * cost.seconds
        against = "" if cost.limit is None else f"{1e3 * cost.limit:g} ms"
        keeps = no_limit(1.0) if cost.limit is None or quick else at_most(1, cost.seconds / cost.limit)
        name = f"{cost.name} ({cost.note})" if cost.note else cost.name
        yield Measured(SUITE, name, value, "ms", against, **keeps)
        if cost.memory is not None:
            yield Measured(
                SUITE, f"{cost.name}: over memory speed", value, "ms",
                f"{1e3 * cost.memory:.3g} ms, at memory speed", **no_limit(cost.seconds / cost.memory),
            )  # fmt: skip
        what = cost.name.partition(",")[0] if "batches" not in cost.name else "batches"
        if cost.users and what in core:
            alone = core[what] * cost.users
            yield Measured(
                SUITE, f"{cost.name}: one core over the device", value, "ms", f"{1e3 * alone:.4g} ms, one core",
                **no_limit(alone / cost.seconds),
            )  # fmt: skip


def one_core(users: int) -> dict[str, float]:
    """Return seconds per user on one core, of a decision, one of a batch, and a payoff that everybody learns."""
    rng = np.random.default_rng(1)
    models: Any = make_models(FEATURES, one_hot=False)
    arrays = as_tensors(learned(np.random.default_rng(0), users))
    models.put({"updated": pack_ids(range(users)), "idle": pack_ids([]), **arrays})
    shown = [models.read(unit_vectors(rng, CANDIDATES, FEATURES)) for _ in range(BATCH)]
    asking = list(range(BATCH))

    def decide(count: int) -> None:
        models.look_many(asking[:count], shown[:count], SCALE)

    def share() -> None:
        view = models.view(0, shown[0][:1])
        models.share(0, shown[0][0], 0.5, view, 100.0, np.inf)

    decide(1)  # compiles
    share()
    return {
        "a decision": best_of(5, lambda: decide(1), time.process_time) / users,
        "batches": best_of(2, lambda: decide(BATCH), time.process_time) / BATCH / users,
        "a payoff that all users learn": best_of(3, share, time.process_time) / users,
    }


def costs(device: Any, amounts: Amounts, on_progress: Callable[[str], None]) -> Iterator[Cost]:
    """Measure everything on the device, its memory first."""
    on_progress("memory speed")
    speed = memory_speed(device, 2 * amounts.users * FEATURES * 8 * 5)
    yield Cost(f"a copy in the device's memory: {speed / 1e9:,.0f} GB/s", 1e9 / speed, note="a gigabyte")
    blocks = UserBlocks(FEATURES, device, amounts.block)
    grow(blocks, 0, amounts.users)
    yield from decisions(blocks, amounts.users, amounts.times, speed, on_progress, limited=True)
    on_progress("growth")
    yield growth(blocks, amounts.users)
    on_progress("runs side by side")
    yield from joint(device, amounts, speed)
    grow(blocks, amounts.users, amounts.many)
    yield from decisions(blocks, amounts.many, 20, speed, on_progress, limited=False)


def memory_speed(device: Any, size: int) -> float:
    """Return bytes a second of a copy: read and written."""
    with jax.enable_x64(True):
        source = jax.device_put(jnp.zeros(max(size, 1024) // 8), device)
        copy = jax.jit(lambda array: array + 1.0)
        made = copy(source).block_until_ready()

        def ten() -> None:
            for _ in range(10):
                copy(source)
            copy(made).block_until_ready()

        return float(11 * 2 * source.nbytes / median(5, ten))


def decisions(
    blocks: UserBlocks, users: int, times: int, speed: float, on_progress: Callable[[str], None], limited: bool
) -> Iterator[Cost]:  # fmt: skip
    """Measure decisions, alone and in batches, payoffs alone and shared by all."""
    rng = np.random.default_rng(1)
    shown = unit_vectors(rng, BATCH * CANDIDATES, FEATURES)
    asking = rng.integers(users, size=BATCH)
    reading = users * 8 * NUMBERS / speed
    everybody = View(np.zeros(1), np.full(1, np.inf))

    def decide(n: int) -> None:
        found = blocks.look(np.repeat(asking[:n], CANDIDATES), shown[: n * CANDIDATES], SCALE, users)
        scores = ((found[3] + SCALE * found[4]) / found[2]).reshape(n, -1)
        (scores.max(1, keepdims=True) - scores < TIE).argmax(1)

    def alone() -> None:
        blocks.learn(int(asking[0]), shown[0], 0.5)
        blocks.wait()

    def shared() -> None:
        learners = blocks.share(shown[CANDIDATES], everybody, SCALE, np.inf, int(asking[0]), 0.5)
        blocks.wait()
        assert learners == users

    few = max(3, times // 10)
    update = reading + 2 * users * blocks.user_bytes / speed  # read to find who learns, then read and written
    plan: list[tuple[str, int, Callable[[], None], int, float | None, float | None]] = [
        ("a decision", times, lambda: decide(1), 1, 1.3e-3, reading),
        (f"a decision, in batches of {BATCH}", few, lambda: decide(BATCH), BATCH, 0.65e-3, reading / BATCH),
        ("a payoff that one user learns", times, alone, 1, None, None),
        ("a payoff that all users learn", few, shared, 1, 4e-3, update),
    ]
    for name, calls, work, each, limit, memory in plan:
        on_progress(f"{users:,} users: {name}")
        end = time.perf_counter() + WARM
        while time.perf_counter() < end:
            work()
        seconds = median(calls, work) / each
        yield Cost(f"{name}, {users:,} users", seconds, limit if limited else None, memory, users)


def growth(blocks: UserBlocks, users: int) -> Cost:
    """Measure the longest pause while users come for whom there is no room yet."""
    x = unit_vectors(np.random.default_rng(2), 1, FEATURES)[0]
    pauses = []
    for _ in range(4):
        row = blocks.room
        start = time.perf_counter()
        blocks.reserve(row + 1)
        blocks.learn(row, x, 0.5)
        blocks.wait()
        pauses.append(time.perf_counter() - start)
    longest = max(pauses[1:])  # the first user of all is compiled for
    return Cost(f"the longest pause of growth beyond {users:,} users", longest, limit=50e-3)


class JointWorld(NamedTuple):
    """The items, and the rounds of each run."""

    table: Floats  # (items, features)
    rounds: JointRounds


def make_world(runs: int, users: int, features: int, candidates: int, rounds: int, seed: int) -> JointWorld:
    """Return rounds of users in ten groups with equal tastes; a payoff is 1 or 0."""
    rng = np.random.default_rng(seed)
    table = unit_vectors(rng, 1_000, features) / 1.0001
    likes = table @ rng.normal(size=(10, features)).T > 1.0  # (items, groups)
    who = rng.integers(users, size=(rounds, runs)).astype(np.int32)
    shown = rng.integers(len(table), size=(rounds, runs, candidates)).astype(np.int32)
    payoffs = likes[shown, (who % 10)[..., None]].astype(np.float64)
    return JointWorld(table, JointRounds(who, shown, payoffs, np.full(who.shape, -1, np.int32)))


def joint(device: Any, amounts: Amounts, speed: float) -> Iterator[Cost]:
    """Measure joint rounds of many runs in a world like LastFM, early and late."""
    n, users, n_rounds = amounts.runs, amounts.run_users, amounts.joint_rounds
    world = make_world(n, users, FEATURES, CANDIDATES, n_rounds, seed=3)
    runs = JointRuns(device, [0.01 * (k % 21) for k in range(n)], [0.2] * n, users, FEATURES, n_rounds)
    with jax.enable_x64(True):
        table = jax.device_put(world.table, device)
    done, times, learners = np.zeros(n, np.int32), [], []
    for first in range(0, n_rounds, STEP):
        rounds = JointRounds(*(part[first : first + STEP] for part in world.rounds))
        start = time.perf_counter()
        played = runs.play_joint(rounds, done, table)
        times.append((time.perf_counter() - start) / STEP)
        learners.append(float(played.updated.sum(1).mean()))
        done += played.kept.sum(0, dtype=np.int32)
    limit, memory = 0.3e-3 if n == RUNS else None, n * users * 8 * NUMBERS / speed
    for name, place in {"early": 1, "late": -1}.items():
        note = f"{learners[place]:,.0f} users learn in it"
        yield Cost(f"a joint round of {n} runs, {name}", times[place], limit, memory, note=note)


def grow(blocks: UserBlocks, first: int, users: int) -> None:
    """Fill the rows from about `first` up to `users` with users who have learned: 4,096 different ones."""
    host = learned(np.random.default_rng(0), min(4096, blocks.size))
    step = host.weights.shape[1]
    with jax.enable_x64(True):
        there = jax.device_put(host, blocks.device)
    blocks.reserve(users)
    for start in range(first // step * step, users, step):
        left = users - start
        blocks.write(start, there if left >= step else UserColumns(*(part[:, :left] for part in host)))
    blocks.wait()


def learned(rng: np.random.Generator, count: int) -> UserColumns:
    """Return users who have learned five payoffs each."""
    x = unit_vectors(rng, 5 * count, FEATURES).reshape(count, 5, FEATURES)
    payoffs = rng.integers(2, size=(count, 5)).astype(np.float64)
    inverse = np.linalg.inv(np.eye(FEATURES) + np.einsum("uka,ukb->uab", x, x))
    weights = np.einsum("uab,uk,ukb->ua", inverse, payoffs, x)
    pairs = inverse[:, *np.triu_indices(FEATURES)]
    lost, missed = (np.zeros(part.T.shape, np.float32) for part in (pairs, weights))
    return UserColumns(pairs.T.copy(), weights.T, lost, missed)


def median(times: int, work: Callable[[], Any]) -> float:
    """Return the median time of a call, in seconds."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def machine() -> JsonObject:
    """Return what a reader needs to place the numbers: the GPU and JAX."""
    device = find_device(None)
    stats = device.memory_stats() or {}
    return {
        "device": device.device_kind,
        "memory": stats.get("bytes_limit"),
        "most used": stats.get("peak_bytes_in_use"),
        "python": sys.version.split()[0],
        "jax": jax.__version__,
        "numpy": np.__version__,
    }
