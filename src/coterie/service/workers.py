"""Several services on one machine: a parent that binds the socket, starts them, and starts one again that dies."""

import os
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import final

from coterie.errors import CoterieError
from coterie.service.logs import log

MOST, WITHIN = 10, 60.0  # deaths within so many seconds after which the parent ends
PAUSE = 0.2  # seconds before a worker is started again


@final
class Workers:
    """Processes that all call `work`; they share what this process has opened.

    `work` gets the worker's number, and whether others serve already, because it is started again.
    """

    def __init__(self, count: int, work: Callable[[int, bool], None]) -> None:
        self._count = count
        self._work = work
        self._running: dict[int, int] = {}  # process id → number
        self._deaths: deque[float] = deque(maxlen=MOST)
        self._stopping = False

    def run(self) -> int:
        """Return when all have ended, after a signal or too many deaths: 0 if all went well."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop())
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
        return worst

    def _start(self, worker: int, again: bool) -> None:
        if self._stopping:
            return
        process = os.fork()
        if process:
            self._running[process] = worker
            return
        code = 1
        try:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
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

    def _stop(self) -> None:
        self._stopping = True
        for process in self._running:
            try:
                os.kill(process, signal.SIGTERM)
            except ProcessLookupError:
                continue
