"""Spans for OpenTelemetry: one per request, with the event's id. Off by default, and then without cost.

Enabled by the setting `telemetry`, the address of a collector, or by one of the variables below. OpenTelemetry itself
reads the other OTEL_* variables (service name, sampler, headers, …).
"""

import os
from collections.abc import Mapping
from typing import Any, final
from urllib.parse import urlsplit

from coterie.errors import MissingExtraError, ParameterError
from coterie.service.settings import Settings

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
EXPORTERS = ("otlp", "console", "none")


@final
class Spans:
    """Sends one span per request to an exporter, in the background and in batches."""

    def __init__(self, exporter: Any, batches: bool = True) -> None:
        from opentelemetry.propagate import extract
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
        from opentelemetry.trace import SpanKind, Status, StatusCode

        told = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in told
        resource = Resource.create({} if named else {"service.name": "coterie"})
        self._provider: Any = TracerProvider(resource=resource)
        self._provider.add_span_processor((BatchSpanProcessor if batches else SimpleSpanProcessor)(exporter))
        self._tracer: Any = self._provider.get_tracer("coterie.service")
        self._extract: Any = extract
        self._kind, self._failed = SpanKind.SERVER, Status(StatusCode.ERROR)

    def answered(self, scope: Any, route: str, status: int, start: int, event: str | None) -> None:
        """Write the span of a request that began at `start` (nanoseconds) and ends now."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        span: Any = self._tracer.start_span(
            f"{scope['method']} {route}",
            context=self._extract({k: v for k, v in headers.items() if k in ("traceparent", "tracestate")}),
            kind=self._kind,
            start_time=start,
            attributes={
                "http.request.method": scope["method"],
                "http.route": route,
                "http.response.status_code": status,
            },
        )
        if event is not None:
            span.set_attribute("coterie.event_id", event)
        if "coterie.outcome" in scope:
            span.set_attribute("coterie.outcome", scope["coterie.outcome"])
        if status >= 500:
            span.set_status(self._failed)
        span.end()

    def close(self) -> None:
        """Send what is left, and stop."""
        self._provider.shutdown()


def spans_of(settings: Settings, environment: Mapping[str, str] | None = None) -> Spans | None:
    """Return where spans go; None if they are not enabled."""
    said = os.environ if environment is None else environment
    if said.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    enabled = [name for name in (*ENDPOINTS, "OTEL_TRACES_EXPORTER") if said.get(name)]
    kind = said.get("OTEL_TRACES_EXPORTER") or "otlp"
    if kind == "none" or (settings.telemetry is None and not enabled):
        return None
    if kind not in EXPORTERS:
        raise ParameterError(f"OTEL_TRACES_EXPORTER is {kind!r}, expected one of {', '.join(EXPORTERS)}")
    by = f"the setting telemetry = {settings.telemetry!r}" if settings.telemetry else f"{enabled[0]} is set"
    try:
        if kind != "console":
            return Spans(_otlp(settings.telemetry, said))
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return Spans(ConsoleSpanExporter())
    except ImportError as error:
        raise MissingExtraError(
            f"telemetry is enabled ({by}), but OpenTelemetry is not installed: "
            "pip install 'coterie[telemetry]', or set OTEL_SDK_DISABLED=true"
        ) from error


def _otlp(address: str | None, said: Mapping[str, str]) -> Any:
    protocol = next((said[name] for name in PROTOCOLS if said.get(name)), "http/protobuf")
    if protocol != "http/protobuf":
        raise ParameterError(f"OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}, expected 'http/protobuf'")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    if address is None:
        return OTLPSpanExporter()
    if urlsplit(address).scheme not in ("http", "https") or not urlsplit(address).hostname:
        raise ParameterError(f"telemetry is {address!r}, expected an address such as http://127.0.0.1:4318")
    return OTLPSpanExporter(endpoint=f"{address.rstrip('/')}/v1/traces")
