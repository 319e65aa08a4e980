"""Records many runs on a Ray cluster: one task per run; data are sent once, files return as bytes.

The cluster needs no access to this machine's folders. A task plays its run in a temporary folder and returns
the files it wrote; this process writes them beside the other traces. An interrupted sweep therefore continues
where it stopped, here or on the cluster; an interrupted run is played again from the start.
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
from coterie.experiments.run.worlds import make_world, preload, whole_of
from coterie.models.files import written_whole

RETRIES = 3  # of a run whose worker failed
PAUSE = 0.2  # seconds between two checks for results
GRACE = 5.0  # seconds for the progress actor to answer, and for cancelled tasks to end


@contextmanager
def on_ray(address: str | None = None) -> Iterator[Workers]:
    """Connect to the cluster at `address` (see `coterie.engines.connect`); yield its workers for `record_all`."""
    with connect(address):
        yield _Sweep().record_all


@final
class _Sweep:
    """Holds references to the data already sent, shared by several calls of `record_all`."""

    def __init__(self) -> None:
        self._sent: dict[str, Any] = {}  # references, by the parameters of the world

    def record_all(self, tasks: Sequence[Task], told: Told, work: Work) -> None:
        """Do `work` on every unfinished run; write results as they arrive."""
        import ray

        counts = [0] * len(tasks)
        asked = []
        for number, (run, path) in enumerate(tasks):
            if path.exists():
                work(run, path)  # finished before: this only checks that the file belongs to this run
                counts[number] = run.n_rounds
            else:
                asked.append(number)
        told(counts)
        if not asked:
            return
        environment = {"env_vars": dict.fromkeys(ONE_THREAD, "1")}
        play = ray.remote(_play).options(max_retries=RETRIES, runtime_env=environment)
        counter = ray.remote(_Progress).options(num_cpus=0, max_restarts=-1, max_task_retries=-1)
        progress = counter.remote(len(tasks))
        waiting = {}
        try:
            for number in asked:
                run, path = tasks[number]
                world = self._send(run.world)
                made_with = run.header()["made_with"]
                waiting[play.remote(number, work, run, path.suffix, [world], made_with, progress)] = number
            while waiting:
                ready, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=PAUSE)
                for reference in ready:
                    number = waiting.pop(reference)
                    run, path = tasks[number]
                    _write(path, _result(reference, run))
                    counts[number] = run.n_rounds
                told([max(pair) for pair in zip(counts, _read(progress, counts), strict=True)])
        finally:
            ray.kill(progress)  # this stops the tasks that still run
            if waiting:
                ray.wait(list(waiting), num_returns=len(waiting), timeout=GRACE)

    def _send(self, parameters: dict[str, Any]) -> Any:
        """Return a reference to the world with its data; the first call sends them to the cluster."""
        import ray

        parameters = whole_of(parameters)
        key = json.dumps(parameters, sort_keys=True)
        if key not in self._sent:
            world = make_world(parameters)
            world.parameters()  # reads the files here, as they may not exist on the cluster
            self._sent[key] = ray.put(world)
        return self._sent[key]


class _Progress:
    """An actor to which runs write their progress and from which the driver reads it. A run ends without it.

    `ray.cancel` is not used: in Ray 2.60 a task that ends while it is cancelled ends the driver too.
    """

    def __init__(self, n_tasks: int) -> None:
        self.counts = [0] * n_tasks

    def write(self, number: int, done: int) -> None:
        self.counts[number] = done

    def read(self) -> list[int]:
        return self.counts


def _play(
    number: int, work: Work, run: Run, suffix: str, world: list[Any], made_with: dict[str, Any], progress: Any
) -> dict[str, bytes]:
    """Do `work` on a run, on the cluster; return the files it wrote, by suffix."""
    import ray

    if run.header()["made_with"] != made_with:
        raise ClusterError(
            f"the cluster runs different code than this process: {run.header()['made_with']}, here {made_with}; "
            "install the same coterie and NumPy on both"
        )
    preload(whole_of(run.world), lambda: ray.get(world[0]))
    with TemporaryDirectory(prefix="coterie-") as folder:
        tick = _ticking(lambda done: ray.get(progress.write.remote(number, done)))
        tick(0)  # so that a cancelled task does not start
        work(run, Path(folder, f"run{suffix}"), tick=tick)
        return {path.suffix: path.read_bytes() for path in Path(folder).iterdir()}


def _ticking(tell: Callable[[int], Any]) -> Callable[[int], None]:
    """Return a function that reports a run's progress from time to time."""
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
            f"the cluster lost {run.label}, seed {run.seed}: {reason}; start again to continue; finished "
            "runs are kept"
        ) from error
    return files


def _read(progress: Any, otherwise: list[int]) -> list[int]:
    """Return the runs' progress, or `otherwise` if the actor does not answer."""
    import ray

    with suppress(ray.exceptions.RayError):
        counts: list[int] = ray.get(progress.read.remote(), timeout=GRACE)
        return counts
    return otherwise


def _write(path: Path, files: dict[str, bytes]) -> None:
    """Write a run's files atomically; the last one marks the run as finished."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for suffix in sorted(files, key=path.suffix.__eq__):
        with written_whole(path.with_suffix(suffix)) as draft:
            draft.write_bytes(files[suffix])
