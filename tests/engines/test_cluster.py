"""Ray clusters: who gets in, where they listen, and what is said of those that cannot be joined."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from coterie import engines
from coterie.engines import cluster
from coterie.engines.cluster import connect, read_address
from coterie.errors import ClusterError, MissingExtraError, ParameterError

JOIN = """
import sys
from coterie.engines import connect
from coterie.errors import ClusterError
try:
    with connect(sys.argv[1]) as address:
        import ray
        print("joined", address, ray.get(ray.remote(lambda: 6 * 7).remote()))
except ClusterError as error:
    print("error:", error)
"""


def join(address: str, **changes: str) -> str:
    """Return what a process that joins says."""
    said = subprocess.run(
        [sys.executable, "-W", "error", "-c", JOIN, address],
        env={**os.environ, **changes},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert said.stderr == ""
    return said.stdout.strip()


def processes() -> Iterator[int]:
    """Yield this process and those that came from it."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has just ended
    for process in parents:
        line = process
        while line in parents and line != os.getpid():
            line = parents[line]
        if line == os.getpid():
            yield process


def listening(process: int) -> set[str]:
    """Return the addresses at which a process takes TCP connections, as /proc writes them."""
    try:
        files = [os.readlink(path) for path in Path(f"/proc/{process}/fd").iterdir()]
    except OSError:
        return set()
    sockets = {name[8:-1] for name in files if name.startswith("socket:[")}
    rows = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/{process}/net/{name}").read_text().splitlines()[1:]
    ]
    return {row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[9] in sockets}


def test_whoever_has_the_token_gets_in(ray_cluster: str) -> None:
    assert join(ray_cluster) == f"joined {ray_cluster} 42"


@pytest.mark.parametrize(
    "changes",
    [
        {"RAY_AUTH_TOKEN": "0" * 64},
        {"RAY_AUTH_TOKEN": "", "RAY_AUTH_MODE": "disabled"},
    ],
    ids=["wrong", "none"],
)
def test_whoever_has_not_is_refused(ray_cluster: str, changes: dict[str, str]) -> None:
    assert join(ray_cluster, **changes) == (
        f"error: the Ray cluster {ray_cluster} refused our token; give that of the cluster"
    )


def test_ray_itself_refuses_them_too(ray_cluster: str) -> None:
    code = "import sys; from ray._raylet import GcsClient; GcsClient(address=sys.argv[1])"
    for changes in ({"RAY_AUTH_TOKEN": "0" * 64}, {"RAY_AUTH_TOKEN": "", "RAY_AUTH_MODE": "disabled"}):
        command = [sys.executable, "-c", code, ray_cluster]
        said = subprocess.run(command, env={**os.environ, **changes}, capture_output=True, text=True)
        assert said.returncode == 1
        assert "InvalidAuthToken" in said.stderr


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="needs /proc")
def test_nothing_listens_beyond_this_machine(ray_cluster: str) -> None:
    import ray

    ray.get(ray.remote(lambda: None).remote())  # so that there is a worker
    found = {process: listening(process) for process in processes()}
    assert len([process for process, where in found.items() if where]) >= 4  # driver, gcs, raylet, worker
    # 127.0.0.1, plainly and as an IPv6 address, in the kernel's byte order
    assert set().union(*found.values()) <= {"0100007F", "0000000000000000FFFF00000100007F"}


def test_token_is_fresh_long_and_nowhere_to_be_read(ray_cluster: str) -> None:
    import ray

    token = os.environ["RAY_AUTH_TOKEN"]
    assert len(bytes.fromhex(token)) == 32
    for process in processes():
        assert token.encode() not in Path(f"/proc/{process}/cmdline").read_bytes()
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    files = [path for path in session.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if token.encode() in path.read_bytes()]
    assert token not in ray_cluster


def test_blocks_for_one_cluster_nest_and_another_waits(ray_cluster: str) -> None:
    import ray

    with connect(ray_cluster) as address, connect(ray_cluster):
        assert address == ray_cluster
    assert ray.is_initialized()
    with pytest.raises(
        ClusterError, match=f"is in the Ray cluster {ray_cluster}; leave it before going to auto"
    ):
        connect("auto").__enter__()


def test_what_does_not_answer_is_told(ray_cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as deaf:
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        monkeypatch.setattr(cluster, "PATIENCE", 2.0)
        with pytest.raises(
            ClusterError, match=f"what listens at {address} does not answer as a Ray cluster does"
        ):
            cluster._ask(address)
    assert (
        join(address) == f"error: nothing answers at {address} (Connection refused); is the Ray cluster up?"
    )


def test_port_of_the_cluster_is_not_that_for_clients(ray_cluster: str) -> None:
    pytest.importorskip("grpc")
    assert "does not answer as a Ray cluster does: UNIMPLEMENTED" in join(f"ray://{ray_cluster}")


def test_token_that_is_not_there_is_told_before_ray_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    with pytest.raises(ClusterError, match=r"no token .*token cannot be read \(No such file"):
        cluster._need_token("there:6379")
    (tmp_path / "token").write_text("\n")
    with pytest.raises(ClusterError, match=r"token is empty; put the cluster's token there"):
        cluster._need_token("there:6379")
    (tmp_path / "token").write_text("secret")
    cluster._need_token("there:6379")


@pytest.mark.parametrize(
    "text", ["", "here", "here:", ":1", "here:0", "here:65536", "http://here:1", "a b:1", "ray://x"]
)
def test_address_that_cannot_be_one(text: str) -> None:
    with pytest.raises(
        ParameterError, match=r"cannot be read; expected local, auto, host:port or ray://host:port"
    ):
        read_address(text)


@pytest.mark.parametrize(
    "text", ["auto", "local", "head-1.lan:6379", "10.0.0.7:6379", "[fd00::7]:6379", "ray://h:10001"]
)
def test_address_that_can(text: str) -> None:
    assert read_address(text) == text


def test_missing_extra_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"needs ray: pip install 'coterie\[ray\]'"):
        connect().__enter__()


def test_engines_are_imported_when_asked_for() -> None:
    assert "connect" in dir(engines)
    with pytest.raises(AttributeError, match=r"module 'coterie.engines' has no attribute 'Spark'"):
        engines.Spark  # noqa: B018
    code = "import sys, coterie.engines.cluster; print('ray' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


def test_cluster_file_is_one_that_ray_takes_and_asks_for_a_token() -> None:
    yaml = pytest.importorskip("yaml")
    util = pytest.importorskip("ray.autoscaler._private.util")
    text = (Path(__file__).parents[2] / "docs" / "cluster.yaml").read_text()
    util.validate_config(util.prepare_config(yaml.safe_load(text)))
    starts = [line for line in text.split("  - ") if "ray start" in line]
    assert len(starts) == 2
    assert all("RAY_AUTH_MODE=token" in line and "RAY_USAGE_STATS_ENABLED=0" in line for line in starts)
