"""OpenTelemetry: off unless asked for; a span a request with its event; a clear word if it is not installed."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from litestar.testing import TestClient

from coterie.errors import MissingExtraError, ParameterError
from coterie.service.http.telemetry import Spans, spans_of
from coterie.service.log.sqlite_store import SqliteStore
from coterie.service.serve import make_app
from coterie.service.settings import Settings
from tests.service.process import service

RANK = {"user": "ann", "actions": [{"id": "a"}, {"id": "b"}], "eventId": "e 1"}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def collector() -> Iterator[tuple[str, list[Any]]]:
    """An OTLP receiver in this process: its address, and the spans it was sent."""
    request = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    spans: list[Any] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path == "/v1/traces":
                sent = request.ExportTraceServiceRequest.FromString(body)
                for resource in sent.resource_spans:
                    name = {a.key: a.value.string_value for a in resource.resource.attributes}["service.name"]
                    spans.extend((name, span) for part in resource.scope_spans for span in part.spans)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", spans
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_it_is_off_unless_asked_for() -> None:
    assert spans_of(Settings(), {}) is None
    assert spans_of(Settings(telemetry="http://127.0.0.1:1"), {"OTEL_SDK_DISABLED": "true"}) is None
    asked = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    assert spans_of(Settings(), {**asked, "OTEL_TRACES_EXPORTER": "none"}) is None


@pytest.mark.parametrize(
    ("settings", "variables", "reason"),
    [
        (Settings(telemetry="http://127.0.0.1:1"), {}, "the setting telemetry = 'http://127.0.0.1:1'"),
        (
            Settings(),
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"},
            "OTEL_EXPORTER_OTLP_ENDPOINT is set",
        ),
        (Settings(), {"OTEL_TRACES_EXPORTER": "console"}, "OTEL_TRACES_EXPORTER is set"),
    ],
)
def test_without_the_extra_it_says_what_asked_and_what_to_install(
    settings: Settings, variables: dict[str, str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("opentelemetry", "opentelemetry.sdk.trace.export", "opentelemetry.propagate"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    monkeypatch.setitem(
        __import__("sys").modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None
    )
    with pytest.raises(MissingExtraError, match=r"coterie\[telemetry\]") as caught:
        spans_of(settings, variables)
    assert reason in str(caught.value)


def test_what_cannot_be_used_is_named() -> None:
    with pytest.raises(
        ParameterError, match="OTEL_TRACES_EXPORTER is 'zipkin', expected one of otlp, console"
    ):
        spans_of(Settings(), {"OTEL_TRACES_EXPORTER": "zipkin"})
    with pytest.raises(ParameterError, match="PROTOCOL is 'grpc', expected 'http/protobuf'"):
        spans_of(Settings(telemetry="http://127.0.0.1:1"), {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    pytest.importorskip("opentelemetry.exporter")
    with pytest.raises(ParameterError, match="telemetry is 'collector:4318', expected an address such as"):
        spans_of(Settings(telemetry="collector:4318"), {})


def test_each_request_is_a_span_with_its_event(tmp_path: Path) -> None:
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    exporter = memory.InMemorySpanExporter()
    settings = Settings(store=str(tmp_path / "log.db"))
    app = make_app(settings, SqliteStore(settings.store))
    app.spans = Spans(exporter, batches=False)
    with TestClient(app, base_url="http://127.0.0.1") as client:
        sent = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
        client.post("/v1/rank", json=RANK, headers=sent)
        client.post("/v1/events/e%201/reward", json={"value": 1})
        client.post("/v1/events/e%201/activate")
        client.post("/personalizer/v1.0/events/e%201/reward", json={"value": 1})
        client.post("/v1/rank", json={**RANK, "user": "bob"})
        client.get("/v1/events/none")
        client.get("/somebody's/guess")
    app.spans.close()
    found = [
        (
            span.name,
            span.attributes["http.response.status_code"],
            span.attributes.get("coterie.event_id"),
            span.attributes.get("coterie.outcome"),
        )
        for span in exporter.get_finished_spans()
    ]
    assert found == [
        ("POST /v1/rank", 201, "e 1", None),
        ("POST /v1/events/{id}/reward", 200, "e 1", "applied"),
        ("POST /v1/events/{id}/activate", 200, "e 1", None),
        ("POST /personalizer/v1.0/events/{id}/reward", 204, "e 1", "duplicate"),
        ("POST /v1/rank", 409, "e 1", None),
        ("GET /v1/events/{id}", 404, "none", None),
        ("GET other", 404, None, None),
    ]
    first = exporter.get_finished_spans()[0]
    assert f"{first.context.trace_id:032x}" == TRACE
    assert f"{first.parent.span_id:016x}" == PARENT
    assert first.end_time > first.start_time


@pytest.mark.parametrize("by", ["setting", pytest.param("variable", marks=pytest.mark.slow)])
def test_a_collector_gets_the_spans_before_the_service_ends(
    by: str, collector: tuple[str, list[Any]], tmp_path: Path
) -> None:
    import httpx

    url, spans = collector
    options = ["--store", str(tmp_path / "log.db")]
    environment = {"OTEL_SERVICE_NAME": "shop"}
    if by == "setting":
        (tmp_path / "settings.toml").write_text(f'telemetry = "{url}"')
        options += ["--settings", str(tmp_path / "settings.toml")]
    else:
        environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = url
    with service(*options, environment=environment) as running:
        assert httpx.post(f"{running.url}/v1/rank", json=RANK).status_code == 201
        code, said = running.stop()
        assert code == 0, said
    ranks = [(name, span) for name, span in spans if span.name == "POST /v1/rank"]
    assert len(ranks) == 1
    assert ranks[0][0] == "shop"
    assert "e 1" in {attribute.value.string_value for attribute in ranks[0][1].attributes}


@pytest.mark.slow
def test_a_collector_that_is_away_costs_no_answer(tmp_path: Path) -> None:
    import httpx

    pytest.importorskip("opentelemetry.exporter")
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    with service("--store", str(tmp_path / "log.db"), environment=environment) as running:
        assert httpx.post(f"{running.url}/v1/rank", json=RANK).status_code == 201
        assert running.stop()[0] == 0
