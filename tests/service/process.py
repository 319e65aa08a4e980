"""A service in a process of its own, for tests that kill it."""

import os
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

SOURCE = Path(__file__).parents[2] / "src"
DRAWS = Path(__file__).parents[2] / "docs" / "draws"  # no secret, so that choices are the same in every run
PATIENCE = 300  # seconds, on a machine with other things to do
LISTENING = re.compile(r"^listening on (http\S+)\n", re.MULTILINE)


def address_in(said: Path, process: "subprocess.Popen[bytes]") -> str:
    """Return where a service listens, as soon as it has said so; raises RuntimeError with what else it said."""
    end = time.monotonic() + PATIENCE
    while True:
        over = process.poll() is not None or time.monotonic() > end  # asked before the last look
        found = LISTENING.search(said.read_text())
        if found is not None:
            return found[1]
        if over:
            raise RuntimeError(f"the service did not start: {said.read_text()}")
        time.sleep(0.02)


@contextmanager
def reserved_port() -> Iterator[int]:
    """Yield a port that another program may bind, for one that cannot say which it took.

    The port stays bound here without listening: a program that names it may bind it too (both set SO_REUSEADDR), and
    nobody who asks for any free port gets it.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


class Process:
    """`coterie serve` on a free port, started and ready."""

    def __init__(
        self,
        *options: str,
        environment: dict[str, str] | None = None,
        trusting: ssl.SSLContext | None = None,
    ) -> None:
        command = [sys.executable, "-m", "coterie.cli", "serve", "--port", "0", *options]
        path = os.pathsep.join([str(SOURCE), str(DRAWS), os.environ.get("PYTHONPATH", "")])
        # A file, and no pipe: nobody reads while the service runs, and a full pipe would stop it.
        self._file = tempfile.NamedTemporaryFile()  # noqa: SIM115 - it lives as long as this object
        self.process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": path, **(environment or {})},
            stdout=self._file,
            stderr=subprocess.STDOUT,
        )
        try:
            self.url = address_in(Path(self._file.name), self.process)
            end = time.monotonic() + PATIENCE
            while not self._is_ready(trusting):
                assert time.monotonic() < end, "the service is not ready"
                time.sleep(0.02)
        except BaseException:
            self.kill()
            raise

    def _is_ready(self, trusting: ssl.SSLContext | None) -> bool:
        """Return whether it is; a connection may break when what answered in the meantime hands the socket on."""
        try:
            return httpx.get(f"{self.url}/readyz", verify=trusting or True).status_code == 200
        except httpx.TransportError as error:
            if self.process.poll() is None:
                return False
            raise RuntimeError(f"the service did not start: {self.stop()[1]}") from error

    def kill(self) -> None:
        """End it as kill −9 does."""
        self.process.kill()
        self._end()

    def stop(self) -> tuple[int, str]:
        """Ask it to stop, and return the exit code and what it said."""
        self.process.terminate()
        return self._end()

    def _end(self) -> tuple[int, str]:
        return self.process.wait(PATIENCE), Path(self._file.name).read_text()


@contextmanager
def service(
    *options: str, environment: dict[str, str] | None = None, trusting: ssl.SSLContext | None = None
) -> Iterator[Process]:
    """Run a service, and end it whatever happens; `trusting` is for one that speaks TLS."""
    process = Process(*options, environment=environment, trusting=trusting)
    try:
        yield process
    finally:
        process.kill()
