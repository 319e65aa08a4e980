"""A real PostgreSQL server, started for the tests and thrown away after."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.service.process import reserved_port


def binaries() -> Path | None:
    """Return where PostgreSQL's programs are, newest first."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    plain = shutil.which("pg_ctl")
    return Path(plain).parent if plain else None


def emptied(url: str) -> str:
    """Return the address of a database, without any table."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    return url


class Server:
    """A server that can be stopped and started again."""

    def __init__(self, url: str, port: int, control: list[str], start: list[str], folder: Path) -> None:
        self.url, self.port = url, port
        self._control, self._start, self._folder = control, start, folder

    def start(self) -> None:
        """Start it, and return when it takes connections."""
        _run([*self._control, *self._start, "start"], self._folder)

    def stop(self) -> None:
        """Stop it as a crash would."""
        _run([*self._control, "-m", "immediate", "stop"], self._folder)


@contextmanager
def server() -> Iterator[str]:
    """Run a server, and yield its URL."""
    with controlled() as running:
        yield running.url


@contextmanager
def controlled() -> Iterator[Server]:
    """Run a server, and yield it."""
    programs = binaries()
    if programs is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    # The server refuses to run as root, so root lends it to the user that the package made.
    lend = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    if lend and subprocess.run([*lend, "true"], capture_output=True, check=False).returncode:
        pytest.skip("PostgreSQL refuses to run as root, and there is no user postgres to run it")
    with tempfile.TemporaryDirectory() as name, reserved_port() as port:
        folder = Path(name)
        if lend:
            shutil.chown(folder, "postgres")
        data = folder / "data"
        _run([*lend, str(programs / "initdb"), "-D", str(data), "-A", "trust", "-U", "coterie", "-N"], folder)
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=on"
        control = [*lend, str(programs / "pg_ctl"), "-D", str(data), "-w"]
        url = f"postgresql://coterie@127.0.0.1:{port}/postgres"
        running = Server(url, port, control, ["-l", str(folder / "log"), "-o", options], folder)
        running.start()
        try:
            yield running
        finally:
            running.stop()


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr}")
