"""R18: what passes by itself is recovered from by itself, and nothing acknowledged is lost or learned twice."""

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest

from tests.service import postgres
from tests.service import postgres_faults as faults
from tests.service.crash_press import Facts, Sender
from tests.service.log import test_crash as crash

QUICK = (faults.cancel, faults.terminate, faults.read_only, faults.freeze_server, faults.fill)
PROMISED = 5.0  # seconds after the end of a fault


@contextmanager
def _pressed(seed: int) -> Iterator[tuple[faults.Services, faults.Load]]:
    """Yield two services under load; in the end, check what was acknowledged."""
    facts = Facts()
    with postgres.controlled() as server, crash.host() as start:
        with psycopg.connect(server.url, autocommit=True) as session:
            session.execute("CREATE DATABASE store")
            session.execute(f"ALTER SYSTEM SET max_connections = {faults.CONNECTIONS}")
        server.stop()
        server.start()
        store = server.url.removesuffix("/postgres") + "/store"
        pair = faults.Services(start, store, server)
        try:
            kinds = (Sender, Sender, faults.Ranks, faults.Ranks)
            senders = [kind(number, seed, facts, policies=True) for number, kind in enumerate(kinds)]
            load = faults.Load(pair, senders)
            try:
                load.after(time.monotonic(), crash.PATIENCE)
                yield pair, load
                pair.whole()
            finally:
                load.stop()
        finally:
            pair.close()
        crash._until_free(store)
        crash._check(store, facts)
    assert {"rank", "reward"} <= facts.counts.keys()
    print(f"{facts.counts}, {facts.again} sent again, {pair.restarts} restarts")


@pytest.mark.parametrize("count", [len(QUICK), pytest.param(50, marks=pytest.mark.slow)])
def test_faults_of_the_database_under_load_pass_by_themselves(count: int) -> None:
    """COTERIE_FAULTS is how many there are instead of 50. Only the slow test measures the time."""
    slow = count == 50
    kinds = list(faults.FAULTS if slow else QUICK)
    if slow:
        count = int(os.environ.get("COTERIE_FAULTS", count))
    rng = random.Random(11)
    slowest: dict[str, float] = {}
    done: Counter[str] = Counter()
    with _pressed(seed=11) as (pair, load):
        for number in range(count):
            fault = kinds[number % len(kinds)]
            pair.whole()
            fault(pair, rng, 8.0 if slow else 1.0)
            seconds = load.after(time.monotonic(), PROMISED if slow else crash.PATIENCE)
            done[fault.__name__] += 1
            slowest[fault.__name__] = max(seconds, slowest.get(fault.__name__, 0.0))
            print(f"{number} {fault.__name__}: {seconds:.2f} s", flush=True)
    assert pair.restarts == 0
    print(f"{dict(done)}, slowest {slowest}")


def test_a_service_that_is_stopped_stops_nobody() -> None:
    """Its kernel answers for it. When it goes on, it follows the log."""
    with _pressed(seed=5) as (pair, load):
        place = pair.whole()
        with faults._stopped([pair.children[place]]):
            for _ in range(5):
                load.after(time.monotonic(), crash.PATIENCE)
        pair.whole()
        load.after(time.monotonic(), crash.PATIENCE)
    assert pair.restarts == 0


def test_a_service_whose_network_is_cut_stops_nobody_and_what_arrives_late_is_kept_once() -> None:
    with _pressed(seed=6) as (pair, load):
        place = pair.whole()
        pair.proxies[place].cut()
        for _ in range(5):
            load.after(time.monotonic(), crash.PATIENCE)
        pair.proxies[place].mend()
        pair.whole()
        load.after(time.monotonic(), crash.PATIENCE)
    assert pair.restarts == 0
