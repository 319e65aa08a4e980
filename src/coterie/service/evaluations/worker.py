"""The worker process: reads a job and then the log from standard input, and writes one JSON object.

It cannot access the store, and knows users only by number.
"""

import os
import signal
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from coterie.data.logs.interactions import InteractionLog
from coterie.data.logs.records import Batch, Configure, Rank, flatten
from coterie.data.logs.rules import Config
from coterie.data.logs.service_log import from_settled
from coterie.data.logs.settling import Settled, settled
from coterie.errors import CoterieError, FileError
from coterie.evaluation import Evaluation, Result, as_json, evaluate
from coterie.evaluation.targets import Target
from coterie.evaluation.verdict import LEVEL
from coterie.service.evaluations import vowpal
from coterie.service.evaluations.importance import scores
from coterie.service.evaluations.jobs import ALWAYS, EvaluatedPolicy, Job, WorkerAnswer, WorkerInput, receive
from coterie.service.evaluations.search import with_policy
from coterie.service.evaluations.served_policy import ServedPolicy
from coterie.service.evaluations.time_series import time_series

NUMBERS = {-1: ""}  # no names: users have only numbers
EACH, PER_ACTION = 3_000, 200  # bytes of a decision and of each of its actions, besides what is logged
WHERE = "the log"


def log_of(batches: Iterable[Batch], work: WorkerInput) -> InteractionLog:
    """Return the decisions in the job's time span; the newest if there are too many, or too much."""
    job = work.job
    # The configuration before the log begins; later changes are records in the log.
    records = chain([(-1, Configure(0, work.config))], flatten(batches))
    kept: deque[Settled] = deque()
    dropped = size = 0
    for one in settled(records):
        if job.start <= one.decision.at < job.end:
            one.decision = msgspec.structs.replace(one.decision, reasons=None, parts=None, hashed=None)
            kept.append(one)
            size += _memory(one.decision)
        while len(kept) > work.records or (size > work.size and len(kept) > 1):
            size -= _memory(kept.popleft().decision)
            dropped += 1
    if not kept:
        raise FileError("the log has no decision in this time; choose another one")
    count = len(kept)
    found = from_settled(WHERE, _taken(kept), NUMBERS)
    if not dropped:
        return found
    limits = "max-evaluated, max-evaluated-bytes"
    note = f"Only the newest {count:,} decisions are evaluated ({limits}); {dropped:,} are older."
    return InteractionLog(found.name, found.interactions, (*found.notes, note))


def _memory(record: Rank) -> int:
    """Return about the memory that a decision takes, first as it is logged and then as an interaction."""
    return EACH + len(record.features or b"") + (PER_ACTION + 8) * len(record.actions)


def _taken(kept: deque[Settled]) -> Iterator[Settled]:
    """Yield the decisions, and forget each."""
    while kept:
        yield kept.popleft()


def do(work: WorkerInput, batches: Iterable[Batch]) -> dict[str, Any]:
    """Return the result of a job."""
    log = log_of(batches, work)

    def on_progress(done: int, records: int) -> None:
        if os.getppid() != work.parent:
            sys.exit(1)  # the service is gone

    if work.job.kind == "importance":
        return {
            "records": len(log.interactions),
            "features": scores(log, on_progress),
            "notes": list(log.notes),
        }
    count = len(log.interactions)
    policies: dict[str, Any] = {name: name for name in ALWAYS}
    policies |= {one.name: _target(one, work.config, count) for one in work.job.policies}
    found = evaluate(log, policies, on_progress=on_progress, skip_unsupported=True)
    result = as_json(found)
    by_name = {one.name: one for one in found.results}
    seconds = np.array([one.at or 0.0 for one in log.interactions])
    for part in result["policies"]:
        _complete(part, by_name[part["policy"]])
        part["series"] = time_series(by_name[part["policy"]].evidence, seconds, 1 - found.level)
    return {**result, "better": better(found, work.job), "features": scores(log, on_progress)}


def _target(one: EvaluatedPolicy, config: Config, records: int) -> Target:
    if one.policy == vowpal.NAME:
        return vowpal.Vowpal(**one.parameters)
    return ServedPolicy(with_policy(config, one), records)


def _complete(part: dict[str, Any], result: Result) -> None:
    """Add the sums of Personalizer's first form, for the whole log and each window."""
    rows = [(part, result.evidence)]
    rows += [
        (window_part, result.evidence.part(window.first, window.last))
        for window_part, window in zip(part["windows"], result.windows, strict=True)
    ]
    for row, evidence in rows:
        paid = evidence.weights * evidence.rewards
        row["sums"] = {
            "n": evidence.n,
            "weighted": float(paid.sum()),
            "weights": float(evidence.weights.sum()),
            "seen": int((evidence.weights > 0).sum()),
            "squares": float(paid @ paid),
        }


def better(found: Evaluation, job: Job) -> str | None:
    """Return a policy that is better, with confidence, than what was shown and than the current one, or None.

    Any candidate could be first by chance, so the p-value is multiplied by their number (Bonferroni).
    """
    rivals = [one.evidence for one in found.results if one.name in ("logged", "current")]
    candidates = [one for one in found.results if one.name not in (*ALWAYS, "current")]
    for one in candidates:  # best first
        enough = all(part.is_enough for part in (one.evidence, *rivals))
        if enough and len(candidates) * max(one.evidence.chance_over(rival) for rival in rivals) <= LEVEL:
            return one.name
    return None


def main() -> None:
    """Do one job."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the service ends this process
    os.nice(10)  # the service has priority
    source = sys.stdin.buffer
    work = receive(source, WorkerInput)
    assert work is not None
    try:
        done = WorkerAnswer(do(work, iter(lambda: receive(source, Batch), None)))
    except CoterieError as error:
        done = WorkerAnswer(error=str(error))
    sys.stdout.buffer.write(msgspec.json.encode(done))


if __name__ == "__main__":
    main()
