"""The cost of shards, and when they pay: the same decisions in one process and through Ray.

All shards run on this machine, so they save no time here; measured are the computation per user and the
messages per decision. Together they give the number of users from which on a given number of machines saves
time.
"""

import time
import timeit
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from coterie import CAB
from coterie.bench.rows import Row, best_of, no_limit, unit_vectors
from coterie.bench.suites import people_shards
from coterie.engines.placement import slot_of
from coterie.engines.shard import Change, Kind
from coterie.engines.sharded import Sharded
from coterie.models import make_models
from coterie.models.files import Tensors, pack_ids

SUITE = "shards"
SHARDS = 4
BATCH = 64
MACHINES = (2, 4, 16)
CHUNK = 50_000  # users created at once


class Case(NamedTuple):
    """The models of users, and their candidates."""

    title: str
    kind: Kind
    n_items: int  # or 0: vectors
    n_candidates: int
    per_user: int  # payoffs learned by each


CASES = (
    Case("one-hot, 5,000 items", Kind(None, True, "updated"), 5_000, 20, 20),
    Case("dense, d = 25", Kind(25, False, "updated"), 0, 25, 5),
)


def rows(quick: bool, told: Callable[[str], None]) -> Iterator[Row]:
    """Measure decisions one by one and in batches of 64, for growing numbers of users."""
    sizes = (1_000, 10_000) if quick else (10_000, 100_000, 1_000_000)
    for case in CASES:
        costs = []
        with closing(_Cluster(case)) as cluster:
            told(f"{case.title}: messages")
            messages, empty = cluster.walls(0), cluster.memory()
            names = ("a decision", f"a decision, in batches of {BATCH}")
            for name, wall in zip(names, messages, strict=True):
                what = f"{case.title}: messages of {name}, {SHARDS} shards"
                yield Row(SUITE, what, 1e6 * wall, "µs", "", **no_limit(1.0))
        for n_users in sizes:
            told(f"{case.title}: {n_users:,} users in one process")
            alone = _alone(case, n_users)
            costs.append(alone)
            told(f"{case.title}: {n_users:,} users in {SHARDS} shards")
            with closing(_Cluster(case)) as cluster:
                cluster.fill(n_users)
                walls, memory = cluster.walls(n_users), cluster.memory()
            for name, one, wall in zip(names, alone, walls, strict=True):
                what = f"{case.title}: {name}, {n_users:,} users"
                yield Row(SUITE, f"{what}, one process", 1e6 * one, "µs", "", **no_limit(1.0))
                ratio = no_limit(wall / one)
                yield Row(SUITE, f"{what}, {SHARDS} shards", 1e6 * wall, "µs", "one process", **ratio)
            what = f"{case.title}: memory of {SHARDS} shards, {n_users:,} users"
            yield Row(SUITE, what, memory / 2**20, "MiB", "empty shards", **no_limit(memory / empty))
        yield from _break_even(case, sizes, costs, messages)
    yield from people_shards.rows(quick, told)


def _break_even(
    case: Case, sizes: Sequence[int], costs: Sequence[tuple[float, float]], messages: tuple[float, float]
) -> Iterator[Row]:
    """Yield the number of users from which machines save time: compute ÷ machines + messages < compute."""
    for which, name in enumerate(("a decision", f"batches of {BATCH}")):
        slope = (costs[-1][which] - costs[0][which]) / (sizes[-1] - sizes[0])  # seconds per user
        for machines in MACHINES:
            pays = messages[which] / (slope * (1 - 1 / machines)) if slope > 0 else float("inf")
            if pays > 1e9:
                continue  # compute does not grow with users: shards save memory, not time
            what = f"{case.title}: {machines} machines pay from, {name}"
            yield Row(SUITE, what, pays, "users", "", **no_limit(pays / sizes[-1]))


def _alone(case: Case, n_users: int) -> tuple[float, float]:
    """Return the seconds of a decision in one process: alone, and in a batch."""
    policy = CAB(n_features=case.kind.n_features, one_hot=case.kind.one_hot)
    policy.models = models = make_models(*case.kind)
    for part in _parts(case, range(n_users)):
        models.put(part)
    policy.learned = n_users
    ask = _Asker(case, n_users, policy)
    ask.one()  # compiled before it is timed
    ask.many()
    few = 20 if n_users < 200_000 or case.kind.one_hot else 3
    clock = time.process_time  # of all threads: the time one core would need
    return best_of(few, ask.one, clock), best_of(few, ask.many, clock) / BATCH


class _Asker:
    """Requests decisions from a policy, for users and candidates drawn before."""

    def __init__(self, case: Case, n_users: int, policy: CAB) -> None:
        rng = np.random.default_rng(1)
        self.policy = policy
        self.users = rng.integers(max(1, n_users), size=BATCH).tolist()
        self.contexts = [_candidates(case, rng) for _ in range(BATCH)]

    def one(self) -> None:
        self.policy.choose(self.users[0], self.contexts[0])

    def many(self) -> None:
        self.policy.choose_many(self.users, self.contexts)


class _Cluster:
    """Shards on Ray, filled without the change log, as no shard fails here."""

    def __init__(self, case: Case) -> None:
        from coterie.engines.cluster import connect
        from coterie.engines.ray import Actors

        self.case = case
        self._leaving = ExitStack()
        self._leaving.enter_context(connect(None))
        self.backend = Actors(timeout=600)
        self.models = Sharded(self.backend, case.kind, SHARDS, "wait", 10**9)
        engine: Any = SimpleNamespace(models=lambda *_: self.models)
        self.policy = CAB(n_features=case.kind.n_features, one_hot=case.kind.one_hot, engine=engine)
        self.count = 0

    def close(self) -> None:
        self.models.close()
        self._leaving.close()

    def fill(self, n_users: int) -> None:
        homes: list[list[int]] = [[] for _ in range(SHARDS)]
        table = self.models.placement.table
        for user in range(n_users):
            homes[table[slot_of(user)]].append(user)
        for shard, users in enumerate(homes):
            for part in _parts(self.case, users):
                self.count += 1
                self.backend.take(self.backend.ask(shard, "change", Change(self.count, "put", (part,))))
        self.policy.learned = n_users

    def walls(self, n_users: int) -> tuple[float, float]:
        """Return the wall-clock seconds of a decision, alone and in a batch; the median of several."""
        ask = _Asker(self.case, n_users, self.policy)
        for work in (ask.one, ask.many):
            for _ in range(3):
                work()
        few = 100 if n_users < 200_000 or self.case.kind.one_hot else 10
        return _median(few, ask.one), _median(max(5, few // 4), ask.many) / BATCH

    def memory(self) -> int:
        """Return the memory of all shards, in bytes, including Python and its libraries."""
        return sum(self.backend.take(self.backend.ask(shard, "memory")) for shard in range(SHARDS))


def _median(times: int, work: Callable[[], Any]) -> float:
    return float(np.median(timeit.repeat(work, number=1, repeat=times)))


def _candidates(case: Case, rng: np.random.Generator) -> Any:
    if case.kind.one_hot:
        return rng.choice(case.n_items, case.n_candidates, replace=False).tolist()
    return unit_vectors(rng, case.n_candidates, case.kind.n_features or 0) / 1.0001


def _parts(case: Case, users: Sequence[int]) -> Iterator[Tensors]:
    """Yield users who have learned, in parts."""
    rng = np.random.default_rng(0)
    for start in range(0, len(users), CHUNK):
        names = users[start : start + CHUNK]
        yield _items_part(case, names, rng) if case.kind.one_hot else _vectors_part(case, names, rng)


def _items_part(case: Case, users: Sequence[int], rng: np.random.Generator) -> Tensors:
    n, k = len(users), case.per_user
    first = rng.integers(case.n_items, size=(n, 1))
    step = 1 + rng.integers(case.n_items // k - 1, size=(n, 1))
    item = (first + step * np.arange(k)) % case.n_items  # k different ones each
    touched, position = np.unique(item.ravel(), return_inverse=True)
    return {
        "users": pack_ids(list(users)),
        "eligible": np.ones(n, dtype=np.int64),
        "items": pack_ids(touched.tolist()),
        "pair_user": np.repeat(np.arange(n), k),
        "pair_item": position.astype(np.int64),
        "pair_times": np.ones(n * k, dtype=np.int64),
        "pair_total": rng.integers(2, size=n * k).astype(np.float64),
    }


def _vectors_part(case: Case, users: Sequence[int], rng: np.random.Generator) -> Tensors:
    """Return copies of a hundred different users; the amount of computation is the same."""
    few = make_models(*case.kind)
    for user in range(min(100, len(users))):
        for context in _candidates(case, rng)[: case.per_user]:
            few.update(user, context, float(rng.integers(2)))
    part = few.part(few.users)
    copies = -(-len(users) // len(few))
    arrays = {
        name: np.concatenate([array] * copies)[: len(users)]
        for name, array in part.items()
        if name not in ("updated", "idle")
    }
    return {"updated": pack_ids(list(users)), "idle": part["idle"], **arrays}
