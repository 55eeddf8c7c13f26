"""OpenTelemetry in tests: spans in memory, and a collector that takes what processes export."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


@contextmanager
def in_memory() -> Iterator[Any]:
    """This process has a tracer provider in the block; yields its InMemorySpanExporter."""
    trace = pytest.importorskip("opentelemetry.trace")
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), sdk.TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "_TRACER_PROVIDER", provider)  # the public way sets it once for the whole process
        yield exporter
    provider.shutdown()


@dataclass(frozen=True)
class Exported:
    """A span as it arrived at the collector. Ids in hexadecimal; ``parent`` is "" of a root."""

    name: str
    trace: str
    id: str
    parent: str
    service: str
    attributes: dict[str, Any] = field(hash=False)
    failed: bool = False


class Collector:
    """An OTLP endpoint (HTTP, protobuf) on a free port."""

    def __init__(self) -> None:
        self.spans: list[Exported] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer._take(self.rfile.read(int(self.headers["Content-Length"])), self.headers["Content-Encoding"])
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @property
    def environment(self) -> dict[str, str]:
        """For a process that exports at once."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}

    def trace(self, id: str) -> list[Exported]:
        return [span for span in list(self.spans) if span.trace == id]

    def __enter__(self) -> Collector:
        threading.Thread(target=self._server.serve_forever, name="collector", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _take(self, body: bytes, encoding: str | None) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        request = ExportTraceServiceRequest()
        request.ParseFromString(gzip.decompress(body) if encoding == "gzip" else body)
        for resource in request.resource_spans:
            service = _attributes(resource.resource.attributes)["service.name"]
            for scope in resource.scope_spans:
                for span in scope.spans:
                    ids = (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex())
                    attributes = _attributes(span.attributes)
                    self.spans.append(Exported(span.name, *ids, service, attributes, span.status.code == 2))


def _attributes(raw: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in raw}


def _value(raw: Any) -> Any:
    kind = raw.WhichOneof("value")
    return [_value(one) for one in raw.array_value.values] if kind == "array_value" else getattr(raw, kind)
