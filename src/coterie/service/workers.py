"""Several services on one machine: a parent that binds the socket, starts them, and starts one again that dies."""

import os
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
        """Return when all have ended, after a signal or too many deaths: 0 if all went well."""
        for number in STOPPING:
            signal.signal(number, lambda *_: self._stop())
        signal.signal(signal.SIGALRM, lambda *_: self._signal(signal.SIGKILL))
        for k in range(self._count):
            self._start(k, False)
        worst = 0
        while self._running:
            process, status = os.wait()
            code = os.waitstatus_to_exitcode(status)
            worker = self._running.pop(process, None)
            if worker is None:
                continue
            if self._stopping:
                # A worker that the signal ends has acknowledged nothing yet: it catches it before it serves.
                worst = max(worst, int(code not in (0, -signal.SIGTERM)))
                continue
            log.error(f"worker {worker} (process {process}) ended with {code}")
            self._deaths.append(time.monotonic())
            if len(self._deaths) == MOST and self._deaths[-1] - self._deaths[0] < WITHIN:
                log.error(f"{MOST} workers ended within {WITHIN:g} s; the service ends")
                worst = 1
                self._stop()
            else:
                time.sleep(PAUSE)
                self._start(worker, True)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        return worst

    def _start(self, worker: int, again: bool) -> None:
        if self._stopping:
            return
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)  # no signal may come before its process is known
        process = os.fork()
        if process:
            self._running[process] = worker
            if self._stopping:  # other threads do not block it: it may have come before its process was known
                os.kill(process, signal.SIGTERM)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
            return
        code = 1
        try:
            for number in STOPPING:
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
        self._signal(signal.SIGTERM)
        signal.setitimer(signal.ITIMER_REAL, self._within)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._running:
            with suppress(ProcessLookupError):
                os.kill(process, number)
