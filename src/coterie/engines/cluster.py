"""Joining a Ray cluster, or starting one that only this machine can reach.

Ray's processes exchange pickled Python: anyone who can reach a cluster can run code on it. So a cluster that we start
listens on 127.0.0.1 only and requires a new random token. Only this process and its children know the token, and it
is neither printed nor written to a file. Before Ray joins a cluster, a probe checks that it accepts our token.
"""

import json
import os
import re
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import RLock
from typing import Any, final

from coterie.errors import ClusterError, MissingExtraError, ParameterError

LOOPBACK = "127.0.0.1"
PATIENCE = 10.0  # seconds for a cluster to answer
TOKEN_FILE = Path("~/.ray/auth_token")  # where Ray itself looks last
ADDRESS = re.compile(r"(?P<client>ray://)?(?P<host>[\w.-]+|\[[0-9a-fA-F:.]+\]):(?P<port>\d{1,5})", re.ASCII)


@contextmanager
def connect(address: str | None = None, *, cpus: int | None = None) -> Iterator[str]:
    """Join a cluster for the length of a `with` block, and yield the cluster's address.

    `ray://host:port` joins from anywhere, `host:port` or `auto` from a machine of the cluster. None or `local` starts
    a cluster of `cpus` processors (default: all) on this machine, which ends with the block. Blocks for the same
    address may be nested, also in different threads; the outermost one to end leaves the cluster.
    """
    asked = read_address(address)
    need_ray(client=asked.startswith("ray://"))
    _held.enter(asked, cpus)
    try:
        yield _held.address
    finally:
        _held.leave()


def read_address(address: str | None) -> str:
    """Return a cluster's address unchanged, `local` for None; raise if it is not valid."""
    if address is None or address == "local":
        return "local"
    found = ADDRESS.fullmatch(address)
    if address != "auto" and (found is None or not 0 < int(found["port"]) < 65536):
        expected = "local, auto, host:port or ray://host:port"
        raise ParameterError(f"ray address {address!r} cannot be read; expected {expected}")
    return address


def need_ray(*, client: bool = False) -> None:
    """Raise unless the ray extra is installed."""
    for name in ("ray", "grpc") if client else ("ray",):
        if find_spec(name) is None:
            raise MissingExtraError(f"this needs {name}: pip install 'coterie[ray]'")


@final
class _Held:
    """The cluster that this process has joined, and how many blocks use it: Ray allows one at a time."""

    def __init__(self) -> None:
        self.address = ""
        self._asked = ""
        self._holders = 0
        self._leaving = ExitStack()
        self._lock = RLock()

    def enter(self, asked: str, cpus: int | None) -> None:
        import ray

        with self._lock:
            if self._holders:
                if asked not in (self._asked, self.address):
                    here = f"this process is in the Ray cluster {self.address}"
                    raise ClusterError(f"{here}; leave it before going to {asked}")
            elif ray.is_initialized():  # by other code, which also ends it
                self.address = str(ray.get_runtime_context().gcs_address)
                if asked not in ("local", "auto", self.address):
                    raise ClusterError(f"Ray is in use for {self.address}; end that to go to {asked}")
            else:
                with ExitStack() as stack:
                    self.address = _start(stack, cpus) if asked == "local" else _join(stack, asked)
                    self._leaving = stack.pop_all()
            if not self._holders:
                self._asked = asked
            self._holders += 1

    def leave(self) -> None:
        with self._lock:
            self._holders -= 1
            if not self._holders:
                self._leaving.close()


_held = _Held()


def _start(stack: ExitStack, cpus: int | None) -> str:
    """Start a cluster that only this machine can reach."""
    settings = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    # Ray's workers run at niceness 15; shards that answer requests must not starve on a busy machine.
    stack.enter_context(_environment({"RAY_worker_niceness": "0", **settings}))
    stack.enter_context(_on_loopback())
    found = _init(stack, "local", num_cpus=cpus or os.cpu_count(), include_dashboard=False)
    if found["node_ip_address"] != LOOPBACK:
        raise ClusterError(
            f"this version of Ray would listen on {found['node_ip_address']}, not on {LOOPBACK} alone; "
            "start a cluster as docs/scale-out.md says, and give its address"
        )
    return str(found["address"])


def _join(stack: ExitStack, address: str) -> str:
    """Join a running cluster."""
    mode = os.environ.get("RAY_AUTH_MODE") or "token"
    if mode == "token":
        _need_token(address)
    _reach(address)
    stack.enter_context(_environment({"RAY_AUTH_MODE": mode}))
    found = _ask(address)
    if found["head"] == LOOPBACK:
        stack.enter_context(_on_loopback())
    _init(stack, found["address"])
    return str(found["address"])


def _need_token(address: str) -> None:
    """Raise unless Ray will find a token: Ray ends the process if RAY_AUTH_TOKEN_PATH names a missing file."""
    if os.environ.get("RAY_AUTH_TOKEN"):
        return
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    path = Path(named) if named else TOKEN_FILE.expanduser()
    try:
        if path.read_text().strip():
            return
        wrong = "is empty"
    except (OSError, ValueError) as error:
        wrong = f"cannot be read ({getattr(error, 'strerror', None) or error})"
    raise ClusterError(
        f"no token for the Ray cluster {address}: {path} {wrong}; put the cluster's token there, or name its file "
        "in RAY_AUTH_TOKEN_PATH (RAY_AUTH_MODE=disabled for a cluster that asks for none)"
    )


def _reach(address: str) -> None:
    """Raise unless something listens at the address."""
    found = ADDRESS.fullmatch(address)
    if found is None:  # auto
        return
    host, port = found["host"].strip("[]"), int(found["port"])
    try:
        socket.create_connection((host, port), timeout=PATIENCE / 2).close()
    except OSError as error:
        reason = error.strerror or error
        raise ClusterError(f"nothing answers at {address} ({reason}); is the Ray cluster up?") from error


def _ask(address: str) -> dict[str, Any]:
    """Return the address of the cluster and its head's ip, if it accepts our token."""
    package = str(Path(__file__).parents[2])
    paths = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-P", "-m", "coterie.engines.probe", address]
    env = {**os.environ, "PYTHONPATH": paths}
    try:
        said = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE)
        found: dict[str, Any] = json.loads(said.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        raise ClusterError(f"what listens at {address} does not answer as a Ray cluster does") from None
    except (IndexError, ValueError) as error:
        last = (said.stderr.strip() or "it said nothing").splitlines()[-1]
        raise ClusterError(f"asking the Ray cluster {address} failed: {last}") from error
    wrong, text = found.get("wrong"), found.get("said")
    if wrong == "none":
        raise ClusterError("no Ray cluster runs on this machine; start one, or give its address as host:port")
    if wrong == "token":
        raise ClusterError(f"the Ray cluster {address} refused our token; give that of the cluster")
    if wrong:
        raise ClusterError(f"what listens at {address} does not answer as a Ray cluster does: {text}")
    return found


def _init(stack: ExitStack, address: str, **settings: Any) -> dict[str, Any]:
    """Call ray.init without its log output."""
    import ray

    quiet = {"logging_level": "warning", "log_to_driver": False, "configure_logging": False}
    if address.startswith("ray://"):
        quiet.pop("configure_logging")  # a setting of the cluster's own process
    stack.enter_context(_in_silence())
    try:
        context = ray.init(address, **quiet, **settings)
    except (RuntimeError, ConnectionError, ValueError, ray.exceptions.RayError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ClusterError(
            f"cannot join the Ray cluster {address}: {reason} (host:port is for machines of the cluster; from "
            "elsewhere it is ray://host:10001)"
        ) from error
    stack.callback(ray.shutdown)
    return dict(getattr(context, "address_info", {}))


@contextmanager
def _environment(settings: dict[str, str]) -> Iterator[None]:
    """Set variables that Ray reads, in this process and its children, and make Ray read them again."""
    settings = {**settings, "RAY_USAGE_STATS_ENABLED": "0"}
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    _read_again()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _read_again()


def _read_again() -> None:
    from ray import _raylet

    _raylet.Config.initialize("")
    _raylet.AuthenticationTokenLoader.instance().reset_cache()


def _on_loopback() -> AbstractContextManager[None]:
    """Make Ray use 127.0.0.1 instead of an outer address; after its import, Ray has no setting for this."""
    return _with("ray._private.ray_constants", "ENABLE_RAY_CLUSTER", False)


def _in_silence() -> AbstractContextManager[None]:
    """Keep Ray from printing that a worker died: the call that waits for the worker raises an error."""
    return _with("ray._private.worker", "_worker_logs_enabled", False)


@contextmanager
def _with(module: str, name: str, value: Any) -> Iterator[None]:
    """Replace a value in a module for the length of a `with` block."""
    home = import_module(module)
    before = getattr(home, name)
    setattr(home, name, value)
    try:
        yield
    finally:
        setattr(home, name, before)
