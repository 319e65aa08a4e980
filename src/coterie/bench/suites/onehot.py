"""One-hot CAB at the sizes of Tuenti's and Avazu's logs, against the direct loop over users; one core."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice

from coterie import CAB
from coterie.arrays import Ints
from coterie.bench.direct_loop import DirectLoop
from coterie.bench.measuring import Measured, at_least, at_most, best_of, no_limit, peak_resident
from coterie.bench.rounds import ClickLog, Clicks
from coterie.experiments.run.replay import Replay, replay

ALPHAS = (0.01, 0.05, 0.1, 0.2)
GAMMA = 0.2
TUENTI = {"n_users": 14_612, "n_items": 105, "n_candidates": 15}
AVAZU = {"n_users": 48_723, "n_items": 5_099, "n_candidates": 20}
MILLION = {"n_users": 1_000_000, "n_items": 5_000, "n_candidates": 1}
DIRECT = "the direct loop over users, compiled by the same compiler"


def rows(quick: bool, on_progress: Callable[[str], None]) -> Iterator[Measured]:
    """Measure late in a Tuenti-sized replay at several α, then the memory of two large ones."""
    for alpha in ALPHAS:
        yield from late(alpha, 1_000_000 if quick else 15_000_000, on_progress)
    tenth = 10 if quick else 1
    for name, size, records, limit in (
        ("Avazu's size", AVAZU, 22_000_000 // tenth, 4),
        ("a million users, every record kept", MILLION, 20_000_000 // tenth, 8),
    ):
        on_progress(f"{name}: {records:,} records in a process of its own")
        found = peak(size, records)
        what = (
            f"peak memory at {name}, {records:,} records, {found['kept']:,} kept, in {found['seconds']:.0f} s"
        )
        keeps = at_most(1, found["peak"] / limit)
        yield Measured("onehot", what, found["peak"], "GiB", f"{limit} GiB", **keeps)


def late(alpha: float, records: int, on_progress: Callable[[str], None]) -> Iterator[Measured]:
    """Replay a Tuenti-sized log; at its end, time both loops on the same records from the same state."""
    world, compared = Clicks(**TUENTI), min(20_000, records // 200)
    policy = CAB(one_hot=True, alpha=alpha, gamma=GAMMA)
    began = time.thread_time()
    for done, log in enumerate(world.records(records)):
        if done % 16 == 0:
            on_progress(f"α = {alpha:g}: {done * len(log.users):,} of {records:,} records")
        replay(policy, *log)
    whole = time.thread_time() - began
    drawing = best_of(1, lambda: list(islice(world.records(records), 1))) * (records / (1 << 18))

    on_progress(f"α = {alpha:g}: the direct loop")
    active = len(policy.users)
    (log,) = world.records(compared, seed=2)
    saved, learned = policy.tensors(), policy.learned
    direct = DirectLoop.of_policy(policy, world.n_users, world.n_items)
    direct.copy().replay(
        ClickLog._make(part[:10] for part in log), alpha, GAMMA
    )  # compiled before it is timed

    def restart() -> CAB:
        again = CAB(one_hot=True, alpha=alpha, gamma=GAMMA)
        again.restore(saved)
        again.learned = learned
        return again

    copies = iter([restart() for _ in range(3)])
    mine: list[Replay] = []
    fast = best_of(3, lambda: mine.append(replay(next(copies), *log))) / compared
    theirs: list[Ints] = []
    slow = best_of(1, lambda: theirs.append(direct.replay(log, alpha, GAMMA))) / compared
    same = int((mine[0].choice == theirs[0]).sum())
    promise = at_least(100, slow / fast)
    if same != compared:
        promise["holds"] = False
    what = f"α = {alpha:g}: records a second, {active:,} users active; {same:,} of {compared:,} choices equal"
    yield Measured("onehot", what, 1 / fast, "records/s", f"{DIRECT}: {1 / slow:,.0f} records/s", **promise)
    what = (
        f"α = {alpha:g}: a replay of {records:,} records, {policy.learned:,} kept (drawing the log took "
        f"{drawing:.0f} s of it)"
    )
    promise = at_most(1, whole / 600) if records >= 15_000_000 else no_limit(whole / 600)
    yield Measured("onehot", what, whole / 60, "min", "10 minutes", **promise)


def peak(size: dict[str, int], records: int) -> dict[str, float]:
    """Replay in a separate process and return its peak memory in GiB, its seconds and the kept records."""
    code = f"from coterie.bench.suites.onehot import in_child; in_child({size!r}, {records!r})"
    said = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[str, float] = json.loads(said)
    return found


def in_child(size: dict[str, int], records: int) -> None:
    """Replay and print memory, time and kept records as JSON."""
    policy = CAB(one_hot=True, alpha=0.1, gamma=GAMMA)
    began = time.monotonic()
    for log in Clicks(**size).records(records):
        replay(policy, *log)
    found = {"peak": peak_resident() / 2**30, "seconds": time.monotonic() - began, "kept": policy.learned}
    print(json.dumps(found))
