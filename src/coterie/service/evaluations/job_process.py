"""Runs one job in a worker process: sends it the log, and waits for its answer."""

import logging
import os
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import final

import msgspec

from coterie.models.threads import ONE_THREAD
from coterie.service.evaluations.jobs import WorkerAnswer, WorkerInput, send
from coterie.service.log.damage import readable
from coterie.service.log.store import Store

log = logging.getLogger("coterie.service")


@final
@dataclass(eq=False)
class JobProcess:
    """A process that does one job. `do` blocks its thread; `end` may be called from any other thread."""

    work: WorkerInput
    store: Store
    within: float  # seconds
    timed_out: bool = False
    ended: bool = False
    _process: "subprocess.Popen[bytes] | None" = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def do(self) -> WorkerAnswer | None:
        """Return the worker's answer, or None if the job was ended."""
        with self._lock:
            if self.ended:
                return None
            process = self._process = subprocess.Popen(
                [sys.executable, "-m", "coterie.service.evaluations.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **dict.fromkeys(ONE_THREAD, "1")},
            )
        said: list[bytes] = []
        assert process.stderr is not None  # read in a thread, so that a full pipe cannot block the process
        reader = threading.Thread(target=lambda: said.append(process.stderr.read()), daemon=True)  # type: ignore[union-attr]
        reader.start()
        timer = threading.Timer(self.within, self._too_long)
        timer.daemon = True
        timer.start()
        try:
            answer = self._talk(process)
        finally:
            timer.cancel()
            process.kill()
            process.wait()
            reader.join()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
        if self.timed_out:
            return WorkerAnswer(error=f"it took longer than {self.within:g} s (evaluation-within)")
        if self.ended:
            return None
        try:
            return msgspec.json.decode(answer, type=WorkerAnswer)
        except msgspec.MsgspecError:
            log.error(f"an evaluation failed: {b''.join(said).decode(errors='replace')[-2000:]}")
            return WorkerAnswer(
                error=f"its process ended with {process.returncode}; the service's log says more"
            )

    def _talk(self, process: "subprocess.Popen[bytes]") -> bytes:
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):  # it was ended or failed; its output says why
            send(process.stdin, self.work)
            for batch in readable(self.store):
                send(process.stdin, batch)
            process.stdin.close()
        return process.stdout.read()

    def _too_long(self) -> None:
        self.timed_out = True
        self.end()

    def end(self) -> None:
        """End the process, now or as soon as it starts."""
        with self._lock:
            self.ended = True
            if self._process is not None:
                self._process.kill()
