"""Where a service listens: port 0 is a free one, and a port that is taken is named."""

import socket
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from coterie.errors import ParameterError
from coterie.service import serve
from coterie.service.listening import listen, url_of
from coterie.service.settings import Settings
from tests.service.process import reserved_port, service


def test_port_0_is_a_free_port_and_the_url_names_it() -> None:
    with ExitStack() as stack:
        taken = [stack.enter_context(listen("127.0.0.1", 0)[0]) for _ in range(20)]
        ports = {one.getsockname()[1] for one in taken}
        assert len(ports) == 20
        assert url_of(taken, "127.0.0.1") == f"http://127.0.0.1:{taken[0].getsockname()[1]}"
        for one in taken:
            stack.enter_context(socket.create_connection(one.getsockname()))


def test_the_url_has_brackets_and_tls_where_it_needs_them() -> None:
    with listen("127.0.0.1", 0)[0] as one:
        assert url_of([one], "::1", tls=True) == f"https://[::1]:{one.getsockname()[1]}"


def test_the_demo_says_first_where_it_is_and_then_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve, "serve_on", lambda *_: None)
    monkeypatch.setattr(serve, "configure_logs", lambda _: None)
    monkeypatch.setattr("os.umask", lambda _: 0)
    for demo in (False, True):
        serve.serve(Settings(port=0), demo=demo)
        first, *more = capsys.readouterr().out.splitlines()
        assert first.startswith("listening on http://127.0.0.1:")
        assert [line.startswith("Open it in a browser: ") for line in more] == [True] * demo


def test_a_taken_port_and_an_unknown_host_are_named() -> None:
    with listen("127.0.0.1", 0)[0] as one:
        port = one.getsockname()[1]
        with pytest.raises(
            ParameterError, match=rf"127\.0\.0\.1, port {port} \(Address already in use\).*--port 0"
        ):
            listen("127.0.0.1", port)
    with pytest.raises(ParameterError, match=r"cannot listen on 256\.0\.0\.1, port 0"):
        listen("256.0.0.1", 0)


def test_a_reserved_port_is_bound_by_whoever_names_it_and_by_nobody_else() -> None:
    with reserved_port() as port, ExitStack() as stack:
        others = [stack.enter_context(listen("127.0.0.1", 0)[0]) for _ in range(200)]
        assert port not in {one.getsockname()[1] for one in others}
        stack.enter_context(listen("127.0.0.1", port)[0])
        stack.enter_context(socket.create_connection(("127.0.0.1", port)))


def test_a_service_on_port_0_says_where_it_listens(tmp_path: Path) -> None:
    with service("--store", str(tmp_path / "log.db"), "--policy", "random") as running:
        assert httpx.get(f"{running.url}/healthz").json() == {"status": "alive"}
        port = running.url.rpartition(":")[2]
        with pytest.raises(RuntimeError, match=f"error: cannot listen on 127.0.0.1, port {port}"):
            service("--port", port, "--store", str(tmp_path / "other.db")).__enter__()
        code, said = running.stop()
    assert (code, said.splitlines()[0]) == (0, f"listening on {running.url}")
    assert not (tmp_path / "other.db").exists()
