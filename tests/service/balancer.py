"""Several services on one store behind HAProxy, with the configuration that is shipped in deploy/."""

import csv
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from tests.service.log import test_crash as crash
from tests.service.process import reserved_port

SHIPPED = Path(__file__).parents[2] / "deploy" / "haproxy.cfg"
PATIENCE = 60.0  # seconds, on a machine with other things to do


class Balanced:
    """Services, each with a port that it keeps over its lives, and the proxy's URL."""

    def __init__(self, start: crash.Start, store: str, ports: list[int]) -> None:
        self.store = store
        self.ports = ports
        self.children = [0] * len(ports)
        self.url = ""
        self.control = ""  # the socket where the proxy is asked
        self._start = start

    def begin(self, place: int) -> None:
        """Start one, and wait until it is ready."""
        _, self.children[place] = self._start(self.store, self.ports[place])
        crash._wait_for(self.ports[place], self.children[place])

    def end(self, place: int, by: signal.Signals = signal.SIGTERM) -> None:
        """Ask one to stop, and wait until it has."""
        child = self.children[place]
        os.kill(child, by)
        end = time.monotonic() + PATIENCE
        while Path(f"/proc/{child}").exists():
            assert time.monotonic() < end, "the service did not stop"
            time.sleep(0.005)

    def each(self) -> list[str]:
        """Return the URLs of the services themselves."""
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    def wait_for_proxy(self, up: int) -> None:
        """Wait until the proxy sends requests to so many services."""
        end = time.monotonic() + PATIENCE
        while (states := self._states()).count("UP") != up:
            assert time.monotonic() < end, f"the proxy sees {states}, expected {up} services"
            time.sleep(0.02)

    def _states(self) -> list[str]:
        with socket.socket(socket.AF_UNIX) as asked, asked.makefile() as said:
            asked.settimeout(PATIENCE)
            asked.connect(self.control)
            asked.sendall(b"show stat\n")
            rows = list(csv.DictReader(said))
        return [row["status"] for row in rows if re.fullmatch(r"s\d+", row["svname"])]

    def kill(self) -> None:
        """Kill all."""
        for child in filter(None, self.children):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def _configuration(ports: list[int], listening: int, control: Path) -> str:
    """Return the shipped configuration, with these services, a socket that listens already, and one to ask it."""
    text = re.sub(r"resolvers docker\n(    .*\n)+", "", SHIPPED.read_text())
    text = text.replace(" resolvers docker init-addr none", "")
    text = re.sub(r"    server .*\n", "", text).rstrip()
    text = text.replace("global\n", f"global\n    stats socket {control}\n")
    servers = [f"    server s{place} 127.0.0.1:{port}" for place, port in enumerate(ports)]
    return "\n".join([text.replace("bind :8080", f"bind fd@{listening}"), *servers, ""])


@contextmanager
def balanced(store: str, folder: Path, count: int = 4) -> Iterator[Balanced]:
    """Run services behind a proxy."""
    program = shutil.which("haproxy", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if program is None:
        pytest.skip("HAProxy is not installed (Debian: apt-get install haproxy)")
    with ExitStack() as stack:
        start = stack.enter_context(crash.host())
        services = Balanced(start, store, [stack.enter_context(reserved_port()) for _ in range(count)])
        stack.callback(services.kill)
        for place in range(count):
            services.begin(place)
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        services.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        written = folder / "haproxy.cfg"
        services.control = str(folder / "proxy")
        written.write_text(_configuration(services.ports, listening.fileno(), folder / "proxy"))
        command = [program, "-f", str(written), "-db"]
        proxy = subprocess.Popen(
            command, pass_fds=[listening.fileno()], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        stack.callback(proxy.wait, PATIENCE)
        stack.callback(proxy.kill)
        end = time.monotonic() + PATIENCE
        while not (folder / "proxy").exists():
            assert proxy.poll() is None, "the proxy did not start"
            assert time.monotonic() < end
            time.sleep(0.01)
        services.wait_for_proxy(count)
        yield services
