"""Records many runs of CAB over feature vectors side by side on a GPU; the other runs are played in processes.

Each run has its own thread, which writes the usual files. A thread with a batch of rounds waits until all other
threads have one too; then the device plays all batches together.
"""

from collections.abc import Hashable, Sequence
from functools import partial
from os import PathLike
from threading import Condition, Thread
from typing import Any, final

import numpy as np

from coterie.engines.runs import JointRuns
from coterie.experiments.run import parallel
from coterie.experiments.run.parallel import OnProgress, RunStoppedError, Task, Work, Workers
from coterie.experiments.run.runs import Run
from coterie.models.batches import names_of
from coterie.models.files import pack_ids, unpack_ids
from coterie.policies import CAB
from coterie.policies.base.batch import Batch, Outcome, read_batch

MOST = 256  # runs side by side
PAUSE = 0.1  # seconds between two reports of progress


def on_device(device: Any) -> Workers:
    """Return workers for `record_all` on a device of JAX."""
    return partial(_record_all, device)


def _record_all(device: Any, tasks: Sequence[Task], on_progress: OnProgress, work: Work) -> None:
    counts = [0] * len(tasks)

    def some_progress(numbers: Sequence[int], done: Sequence[int]) -> None:
        for number, rounds in zip(numbers, done, strict=True):
            counts[number] = rounds
        on_progress(counts)

    together: dict[tuple[int, int], list[int]] = {}  # by the shape of their models
    others: list[int] = []
    for number, (run, _) in enumerate(tasks):
        shape = shape_of(run)
        (others if shape is None else together.setdefault(shape, [])).append(number)
    for shape, numbers in together.items():
        for first in range(0, len(numbers), MOST):
            some = numbers[first : first + MOST]
            _play_together(device, shape, [tasks[k] for k in some], partial(some_progress, some), work)
    if others:
        parallel.record_all([tasks[k] for k in others], partial(some_progress, others), None, work)


def shape_of(run: Run) -> tuple[int, int] | None:
    """Return users and features of a run that a device can play beside others; None if it cannot."""
    world = run.make_world()
    if run.policy != "cab" or run.items != "features" or hasattr(world, "turnover"):
        return None
    policy: Any = run.make_policy()
    plain = policy.runs_compiled and policy.half_life is None and not policy.thompson
    if not plain or policy.one_hot:
        return None
    return int(world.n_users), int(policy.n_features)


def _play_together(
    device: Any, shape: tuple[int, int], tasks: Sequence[Task], on_progress: OnProgress, work: Work
) -> None:
    barrier = _Barrier(device, shape, tasks)
    counts = [0] * len(tasks)

    def record(number: int, task: Task) -> None:
        def tick(done: int) -> None:
            counts[number] = done
            barrier.check()

        run, path = task
        try:
            work(run, path, tick=tick, placed=lambda policy: OnDeviceCAB(policy, barrier, number))
            counts[number] = run.n_rounds
        except BaseException as error:
            barrier.stop(error)
        barrier.leave()

    threads = [Thread(target=record, args=pair, daemon=True) for pair in enumerate(tasks)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(PAUSE)
                on_progress(counts)
    finally:
        barrier.stop()
        for thread in threads:
            thread.join()
    if barrier.error is not None:
        raise barrier.error


@final
class _Barrier:
    """Where the runs' threads wait for each other."""

    def __init__(self, device: Any, shape: tuple[int, int], tasks: Sequence[Task]) -> None:
        users, n_features = shape
        alpha, gamma = ([run.parameters[name] for run, _ in tasks] for name in ("alpha", "gamma"))
        self.runs = JointRuns(device, alpha, gamma, users, n_features, max(run.n_rounds for run, _ in tasks))
        self.changed = Condition()
        self._present = len(tasks)
        self._asked: dict[int, tuple[Batch, int]] = {}
        self._answers: dict[int, Any] = {}
        self._stopped = False
        self.error: BaseException | None = None  # the first that stopped the runs

    def play(self, run: int, rounds: Batch, learned: int) -> Any:
        """Play a batch of one run, together with those of the others."""
        with self.changed:
            self._asked[run] = rounds, learned
            self._play_if_all_ask()
            self.changed.wait_for(lambda: run in self._answers or self._stopped)
            self.check()
            return self._answers.pop(run)

    def leave(self) -> None:
        """Continue without one of the runs."""
        with self.changed:
            self._present -= 1
            self._play_if_all_ask()

    def stop(self, error: BaseException | None = None) -> None:
        """Let every run stop."""
        with self.changed:
            if not self._stopped:
                self._stopped, self.error = True, error
            self.changed.notify_all()

    def check(self) -> None:
        """Raise if the runs are to stop."""
        if self._stopped:
            raise RunStoppedError

    def _play_if_all_ask(self) -> None:
        if self._asked and len(self._asked) == self._present and not self._stopped:
            asked, self._asked = self._asked, {}
            try:
                self._answers |= self.runs.play(asked)
            except BaseException as error:
                self.stop(error)
            self.changed.notify_all()


@final
class OnDeviceCAB:
    """CAB for `record`, with its models on the device, beside those of other runs."""

    def __init__(self, policy: CAB, barrier: _Barrier, number: int) -> None:
        self._policy, self._barrier, self._number = policy, barrier, number
        self._learned = policy.learned
        learned = policy.tensors()  # of an interrupted run that continues
        self._rows: dict[Hashable, int] = {
            user: row for row, user in enumerate(unpack_ids(learned, "updated"))
        }
        if self._rows:
            with barrier.changed:
                barrier.runs.write(number, learned, len(self._rows))

    def run(self, batch: Batch) -> Outcome:
        """Play many rounds; see `Policy.run`."""
        candidates, payoffs, served = read_batch(batch)
        users = names_of(batch.users)
        rows = np.array([self._rows.setdefault(user, len(self._rows)) for user in users], np.int64)
        rounds = Batch(rows, candidates, self._policy.models.read(batch.items), payoffs, served)
        played = self._barrier.play(self._number, rounds, self._learned)
        self._learned += int(played.kept.sum())
        choice, members, updated = (
            part.astype(np.int64) for part in (played.choice, played.members, played.updated)
        )
        return Outcome(choice, played.kept, members, updated)

    def save(self, path: str | PathLike[str]) -> None:
        """Save the policy as if it had learned in this process."""
        with self._barrier.changed:
            rows, models = self._barrier.runs.read(self._number)
        names = list(self._rows)
        updated = pack_ids([names[row] for row in rows])
        self._policy.restore({"updated": updated, "idle": pack_ids([]), **models})
        self._policy.learned = self._learned
        self._policy.save(path)
