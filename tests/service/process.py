"""A service in a process of its own, for tests that kill it."""

import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

SOURCE = Path(__file__).parents[2] / "src"


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Process:
    """`coterie serve`, started and ready."""

    def __init__(
        self,
        *options: str,
        environment: dict[str, str] | None = None,
        trusting: ssl.SSLContext | None = None,
    ) -> None:
        self.port = free_port()
        self.url = f"http{'s' if trusting else ''}://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "coterie.cli", "serve", "--port", str(self.port), *options]
        path = f"{SOURCE}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        self.process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": path, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        end = time.monotonic() + 300
        while True:
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the service did not start: {self.stop()[1]}")
            try:
                if httpx.get(f"{self.url}/readyz", verify=trusting or True).status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.05)

    def kill(self) -> None:
        """End it as kill −9 does."""
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()

    def stop(self) -> tuple[int, str]:
        """Ask it to stop, and return the exit code and what it said."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        said, _ = self.process.communicate(timeout=300)
        return self.process.returncode, said


@contextmanager
def service(
    *options: str, environment: dict[str, str] | None = None, trusting: ssl.SSLContext | None = None
) -> Iterator[Process]:
    """Run a service, and end it whatever happens; `trusting` is for one that speaks TLS."""
    process = Process(*options, environment=environment, trusting=trusting)
    try:
        yield process
    finally:
        if process.process.poll() is None:
            process.kill()
