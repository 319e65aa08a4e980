"""Recording many runs on a Ray cluster: one task a run, data sent once, files that come back as bytes.

The machines of the cluster need not see this one's folders. A task plays its run in a folder of its own and returns
what it wrote; this process writes that beside the other traces, so that a sweep goes on where it was interrupted,
here or on the cluster. A run is played whole, or again.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, final

from coterie.engines import connect
from coterie.errors import ClusterError
from coterie.experiments.run.parallel import ONE_THREAD, Task, Told, Work, Workers
from coterie.experiments.run.runs import Run
from coterie.experiments.run.worlds import keep_at_hand, make_world, whole_of
from coterie.models.files import written_whole

RETRIES = 3  # of a run whose worker died
PAUSE = 0.2  # seconds between two looks at what came
GRACE = 5.0  # seconds for the board to answer, and for tasks to end once they are called off


@contextmanager
def on_ray(address: str | None = None) -> Iterator[Workers]:
    """Be in the cluster at `address` (see `coterie.engines.connect`); yield its workers, for `record_all`."""
    with connect(address):
        yield _Sweep().record_all


@final
class _Sweep:
    """What several calls of `record_all` share: the data that were sent."""

    def __init__(self) -> None:
        self._sent: dict[str, Any] = {}  # references, by the parameters of the world

    def record_all(self, tasks: Sequence[Task], told: Told, work: Work) -> None:
        """Do `work` on every run that was not done before; write results as they come."""
        import ray

        counts = [0] * len(tasks)
        asked = []
        for number, (run, path) in enumerate(tasks):
            if path.exists():
                work(run, path)  # done before: it only makes sure that the file is about this run
                counts[number] = run.n_rounds
            else:
                asked.append(number)
        told(counts)
        if not asked:
            return
        play = ray.remote(_play).options(
            max_retries=RETRIES, runtime_env={"env_vars": dict.fromkeys(ONE_THREAD, "1")}
        )
        board = (
            ray.remote(_Board).options(num_cpus=0, max_restarts=-1, max_task_retries=-1).remote(len(tasks))
        )
        waiting = {}
        try:
            for number in asked:
                run, path = tasks[number]
                world = self._send(run.world)
                made_with = run.header()["made_with"]
                waiting[play.remote(number, work, run, path.suffix, [world], made_with, board)] = number
            while waiting:
                ready, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=PAUSE)
                for reference in ready:
                    number = waiting.pop(reference)
                    run, path = tasks[number]
                    _write(path, _result(reference, run))
                    counts[number] = run.n_rounds
                told([max(pair) for pair in zip(counts, _read(board, counts), strict=True)])
        finally:
            ray.kill(board)  # which calls off what is under way, if anything is
            if waiting:
                ray.wait(list(waiting), num_returns=len(waiting), timeout=GRACE)

    def _send(self, parameters: dict[str, Any]) -> Any:
        """Return a reference to the world with its data, which go to the cluster's memory the first time."""
        import ray

        parameters = whole_of(parameters)
        key = json.dumps(parameters, sort_keys=True)
        if key not in self._sent:
            world = make_world(parameters)
            world.parameters()  # so that files are read here, not where they may not be
            self._sent[key] = ray.put(world)
        return self._sent[key]


class _Board:
    """Where runs write how far they are, and the driver reads it. A run whose board is taken away ends.

    `ray.cancel` would be the plain way, but in Ray 2.60 a task that ends while it is cancelled ends the driver too.
    """

    def __init__(self, n_tasks: int) -> None:
        self.counts = [0] * n_tasks

    def write(self, number: int, done: int) -> None:
        self.counts[number] = done

    def read(self) -> list[int]:
        return self.counts


def _play(
    number: int, work: Work, run: Run, suffix: str, world: list[Any], made_with: dict[str, Any], board: Any
) -> dict[str, bytes]:
    """Do `work` on a run; return the files it wrote, by their suffix. This happens on the cluster."""
    import ray

    if run.header()["made_with"] != made_with:
        raise ClusterError(
            f"the cluster runs another code than this process: {run.header()['made_with']}, here {made_with}; "
            "install the same coterie and NumPy on both"
        )
    keep_at_hand(whole_of(run.world), lambda: ray.get(world[0]))
    with TemporaryDirectory(prefix="coterie-") as folder:
        tick = _ticking(lambda done: ray.get(board.write.remote(number, done)))
        tick(0)  # so that what was called off does not begin
        work(run, Path(folder, f"run{suffix}"), tick=tick)
        return {path.suffix: path.read_bytes() for path in Path(folder).iterdir()}


def _ticking(tell: Callable[[int], Any]) -> Callable[[int], None]:
    """Return a function that tells how far a run is, now and then."""
    last = 0.0

    def tick(done: int) -> None:
        nonlocal last
        if time.monotonic() - last > PAUSE:
            last = time.monotonic()
            tell(done)

    return tick


def _result(reference: Any, run: Run) -> dict[str, bytes]:
    import ray

    try:
        files: dict[str, bytes] = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        raise error.cause or error from None
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()[0]
        raise ClusterError(
            f"the cluster lost {run.label}, seed {run.seed}: {reason}; what came is kept, so start again to go on"
        ) from error
    return files


def _read(board: Any, otherwise: list[int]) -> list[int]:
    """Return how far the runs are; a board that does not answer is no reason to stop."""
    import ray

    with suppress(ray.exceptions.RayError):
        counts: list[int] = ray.get(board.read.remote(), timeout=GRACE)
        return counts
    return otherwise


def _write(path: Path, files: dict[str, bytes]) -> None:
    """Write a run's files, each whole or not at all, the one that says that the run is done last."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for suffix in sorted(files, key=path.suffix.__eq__):
        with written_whole(path.with_suffix(suffix)) as draft:
            draft.write_bytes(files[suffix])
