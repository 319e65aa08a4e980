"""Several services on one machine: a parent that binds the socket, starts them, and starts one again that dies."""

import math
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import final

from coterie.errors import CoterieError
from coterie.service.logs import log

MOST, WITHIN = 10, 60.0  # deaths within so many seconds after which the parent ends
PAUSE = 0.2  # seconds before a worker is started again
STOPPING = (signal.SIGTERM, signal.SIGINT)


@final
class Workers:
    """Processes that all call `work`; they share what this process has opened.

    `work` gets the worker's number, and whether others serve already, because it is started again. After a signal, a
    worker has `within` seconds to end, then it is killed. If this process is killed, the workers end, so that another
    can have the port.
    """

    def __init__(self, count: int, work: Callable[[int, bool], None], within: float = 100.0) -> None:
        self._count = count
        self._work = work
        self._within = within
        self._alive = os.pipe()  # which ends for the workers when this process does
        self._running: dict[int, int] = {}  # process id → number
        self._deaths: deque[float] = deque(maxlen=MOST)
        self._stopping = False

    def run(self) -> int:
        """Return when all have ended, after a signal or too many deaths: 0 if all went well.

        Handlers only note what came. The pipe `woken` wakes this loop, whichever thread a signal is delivered to.
        """
        woken, wake = os.pipe()
        for end in (woken, wake):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in STOPPING:
            signal.signal(number, lambda *_: self._stop())
        before = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        try:
            for k in range(self._count):
                self._start(k, False)
            return self._wait(woken)
        finally:
            signal.set_wakeup_fd(before)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(woken)
            os.close(wake)

    def _wait(self, woken: int) -> int:
        worst, killed_at, told = 0, math.inf, False
        while self._running:
            if self._stopping and not told:
                told, killed_at = True, time.monotonic() + self._within
                self._signal(signal.SIGTERM)
            left = killed_at - time.monotonic()
            if left <= 0:
                self._signal(signal.SIGKILL)
            select.select([woken], [], [], None if left == math.inf else max(left, PAUSE))
            with suppress(BlockingIOError):
                os.read(woken, 4096)
            for process in list(self._running):
                ended, status = os.waitpid(process, os.WNOHANG)
                if ended:
                    worst = max(worst, self._ended(process, os.waitstatus_to_exitcode(status)))
        return worst

    def _ended(self, process: int, code: int) -> int:
        """Start a worker again that died; return 1 if the service ends badly."""
        worker = self._running.pop(process)
        if self._stopping:
            # A worker that the signal ends has acknowledged nothing yet: it catches it before it serves.
            return int(code not in (0, -signal.SIGTERM))
        log.error(f"worker {worker} (process {process}) ended with {code}")
        self._deaths.append(time.monotonic())
        if len(self._deaths) == MOST and self._deaths[-1] - self._deaths[0] < WITHIN:
            log.error(f"{MOST} workers ended within {WITHIN:g} s; the service ends")
            self._stop()
            return 1
        time.sleep(PAUSE)
        self._start(worker, True)
        return 0

    def _start(self, worker: int, again: bool) -> None:
        if self._stopping:
            return
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)  # until the new process has no handlers
        process = os.fork()
        if process:
            self._running[process] = worker
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
            return
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (*STOPPING, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
            os.close(self._alive[1])
            threading.Thread(target=self._end_with_parent, daemon=True).start()
            self._work(worker, again)
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except CoterieError as error:
            print(f"error: {error}", file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _end_with_parent(self) -> None:
        os.read(self._alive[0], 1)
        os.kill(os.getpid(), signal.SIGTERM)

    def _stop(self) -> None:
        self._stopping = True

    def _signal(self, number: signal.Signals) -> None:
        for process in self._running:
            with suppress(ProcessLookupError):
                os.kill(process, number)
