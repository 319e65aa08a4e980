"""Bytes per decision: in memory while it waits for its reward, and on the disk with its index."""

import random
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import Struct

from coterie.bench.measuring import Measured, at_most, no_limit
from coterie.bench.service.loadtest import action_features, context_features
from coterie.data.logs.records import join, pack
from coterie.data.logs.rules import Config
from coterie.service.core.bandit import Bandit
from coterie.service.core.question import Action, Question
from coterie.service.core.waits import ROW, Waits
from coterie.service.log.reading import LogReader
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.log.store import Append

SUITE = "sizes"
ACTIONS = 20
BATCH = 20  # decisions in one commit, as under load


class Sizes(Struct, frozen=True):
    """What was measured, in bytes per decision."""

    plain: float  # the records of a decision and its reward, before they are compressed
    log: float  # in the log
    file: float  # of the store's file, with the index
    memory: float  # of an event in memory
    counted: float  # what `max-event-bytes` counts for it
    wait: float  # of a wait whose event has left memory


def rows(quick: bool, on_progress: Callable[[str], None]) -> Iterator[Measured]:
    """Yield the bytes of a decision between 20 actions, with a reward for every second one."""
    for features in (False, True):
        what = "with features" if features else "with ids"
        on_progress(f"decisions {what}")
        found = measure(features, 2_000 if quick else 20_000)
        for name, value, against, reference, limit in (
            ("in the log", found.log, "before it is compressed", found.plain, 0.6),
            ("of the store's file, with the index", found.file, "before it is compressed", found.plain, None),
            ("of an event in memory", found.memory, "what max-event-bytes counts", found.counted, 1.3),
            ("of a wait whose event left memory", found.wait, "what max-event-bytes counts", float(ROW), 1.3),
        ):
            ratio = value / reference
            bound = no_limit(ratio) if limit is None else at_most(limit, ratio)
            yield Measured(
                SUITE, f"a decision {what}, {name}", value, "bytes", f"{reference:,.0f} B {against}", **bound
            )


def measure(features: bool, decisions: int) -> Sizes:
    """Decide, with a reward for every second decision, and measure."""
    chance = random.Random(1)
    made = Bandit()
    made.configure(Config(), 1)
    plain = packed = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sizes.db"
        store = SqliteStore(str(path))
        made.log = LogReader(store)
        tracemalloc.start()
        before = 0
        for k in range(decisions):
            if k == decisions // 10:  # by then, what does not grow with decisions is there
                before = tracemalloc.get_traced_memory()[0]
            actions = [
                Action(f"item-{j}", action_features(j) if features else None)
                for j in chance.sample(range(1000), ACTIONS)
            ]
            context = context_features(chance.randrange(1000)) if features else ()
            question = Question(f"{chance.getrandbits(128):032x}", f"user-{k % 50}", actions, context)
            made.rank(question, 1 + k)
            if k % 2:
                made.reward(question.event, 1.0, 1 + k)
            if k % BATCH == BATCH - 1:
                records, named, gone, scrub = made.drain()
                batch = pack(made.position - len(records), records)
                plain += len(join(records))
                packed += len(batch.body)
                store.append(Append(batch, named, gone, scrub))
        memory = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        counted = made.remembered.size
        store.close()
        size = path.stat().st_size
    return Sizes(
        plain / decisions, packed / decisions, size / decisions, memory / (0.9 * decisions), counted / decisions,
        _wait(decisions),
    )  # fmt: skip


def _wait(decisions: int) -> float:
    """Return the memory of a wait."""
    waits = Waits()
    tracemalloc.start()
    for k in range(decisions):
        waits.add(k, 600_000 + k, k % 50)
    found = tracemalloc.get_traced_memory()[0] / decisions
    tracemalloc.stop()
    return found
