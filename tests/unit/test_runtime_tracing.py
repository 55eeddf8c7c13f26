"""Spans without and with a tracer provider, what continues a trace, and where brimful's own processes export to."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from brimful.runtime import span_export, tracing
from support.spans import Collector, in_memory

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECRET = "a prompt that is nobody's business"


@pytest.fixture
def exported() -> Iterator[Any]:
    with in_memory() as exporter:
        yield exporter


def test_a_process_that_is_not_asked_for_spans_does_not_load_what_makes_them() -> None:
    """redis-py loads OpenTelemetry's API, where it is installed."""
    code = (
        "import sys, brimful, brimful.tasks, brimful.client.fleet, brimful_worker.sampling.sampler\n"
        "from brimful.runtime import span_export, tracing\n"
        "span_export.set_up('x')\n"
        "with tracing.span('x', 'CLIENT', {}) as span, tracing.sending('x', {}), tracing.continued({}.get):\n"
        "    print(span, tracing.tracer(), tracing.traceparent(), tracing.ids(), dict(tracing.sent_headers()))\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry.sdk.trace')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["None None None {} {}", "[]"]


def test_without_a_provider_there_are_no_spans() -> None:
    pytest.importorskip("opentelemetry.trace")
    with tracing.span("x", "CLIENT", {}) as span, tracing.continued({"traceparent": PARENT}.get):
        assert (span, tracing.tracer(), tracing.traceparent()) == (None, None, None)


def test_a_span_has_its_kind_and_what_is_known(exported: Any) -> None:
    with tracing.span("outer", "CONSUMER", {"a": 1, "b": None}), tracing.span("inner", "CLIENT", {}) as inner:
        assert inner is not None
        ids = tracing.ids()
        header = tracing.traceparent()
    inner, outer = exported.get_finished_spans()
    assert (outer.name, outer.kind.name, dict(outer.attributes)) == ("outer", "CONSUMER", {"a": 1})
    assert inner.parent.span_id == outer.context.span_id
    assert ids == {"trace_id": f"{inner.context.trace_id:032x}", "span_id": f"{inner.context.span_id:016x}"}
    assert header == f"00-{ids['trace_id']}-{ids['span_id']}-{inner.context.trace_flags:02x}".encode()


def test_of_an_exception_a_span_has_only_the_type(exported: Any) -> None:
    with pytest.raises(ValueError), tracing.span("x", "CLIENT", {}):
        raise ValueError(SECRET)
    [span] = exported.get_finished_spans()
    assert span.attributes["error.type"] == "ValueError"
    assert span.status.status_code.name == "ERROR"
    assert not span.events
    assert SECRET not in span.to_json()


def test_the_span_that_headers_name_is_the_parent(exported: Any) -> None:
    with tracing.continued({"traceparent": PARENT, "tracestate": "a=1"}.get), tracing.span("x", "SERVER", {}):
        pass
    [span] = exported.get_finished_spans()
    assert f"{span.context.trace_id:032x}-{span.parent.span_id:016x}" == PARENT[3:-3]
    assert tracing.traceparent() is None


def test_a_span_that_is_current_already_stays_the_parent(exported: Any) -> None:
    header = {"traceparent": PARENT}.get
    with tracing.span("celery's", "CONSUMER", {}), tracing.continued(header), tracing.span("x", "CONSUMER", {}):
        pass
    inner, outer = exported.get_finished_spans()
    assert inner.parent.span_id == outer.context.span_id
    assert outer.parent is None


@pytest.mark.parametrize("header", [None, "", "nonsense", PARENT.replace("0af", "xyz"), 17, PARENT + "-" * 9000])
def test_a_header_that_names_no_span_begins_a_new_trace(exported: Any, header: Any) -> None:
    with tracing.continued({"traceparent": header}.get), tracing.span("x", "SERVER", {}):
        pass
    [span] = exported.get_finished_spans()
    assert span.parent is None


def test_a_message_names_the_span_that_sends_it(exported: Any) -> None:
    assert tracing.sent_headers() == {}
    with tracing.sending("brimful enqueue", {"queue": "batch"}):
        headers = dict(tracing.sent_headers())
    assert tracing.sent_headers() == {}
    [span] = exported.get_finished_spans()
    assert span.kind.name == "PRODUCER"
    assert headers["traceparent"].startswith(f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-")


OTLP = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({}, []),
        ({OTLP: "http://collector:4318"}, ["otlp_proto_http"]),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, ["otlp_proto_http"]),
        ({OTLP: "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, ["otlp_proto_grpc"]),
        ({OTLP: "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, []),
        ({"OTEL_TRACES_EXPORTER": "console, otlp"}, ["console", "otlp_proto_http"]),
        ({OTLP: "http://c:4318", "OTEL_SDK_DISABLED": "True"}, []),
    ],
)
def test_the_standard_variables_choose_the_exporter(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], names: list[str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert span_export.exporters() == names


@pytest.mark.parametrize(
    ("exporter", "hidden", "said"),
    [
        ("zipkin", "", "there is no exporter zipkin; installed are console, "),
        ("otlp", "opentelemetry.sdk.trace", "pip install 'brimful[otel]'"),
    ],
)
def test_what_is_missing_is_said_and_the_process_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, exporter: str, hidden: str, said: str
) -> None:
    pytest.importorskip("opentelemetry.sdk.trace")
    if hidden:
        monkeypatch.setitem(sys.modules, hidden, None)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", exporter)
    caplog.set_level(logging.WARNING)
    span_export.set_up("brimful-worker")
    [record] = caplog.records
    assert record.getMessage().startswith("spans are not exported: ")
    assert said in record.getMessage()
    assert tracing.tracer() is None


def test_a_process_that_ends_sends_its_last_spans_whatever_is_in_them() -> None:
    pytest.importorskip("opentelemetry.sdk.trace")
    code = (
        "from brimful.runtime import span_export, tracing\n"
        "span_export.set_up('brimful-test', 'node-1')\n"
        "with tracing.span('last', 'CLIENT', {'n': 1, 'huge': 1 << 70, 'id': 'x\\ud800'}) as span:\n"
        "    tracing.note(span, {'ids': ['\\udfff'], 'none': None, 'long': 'y' * 9999})\n"
        "    tracing.fail(span, 'timeout', 'half: \\ud800')\n"
    )
    with Collector() as collector:
        env = {**os.environ, **collector.environment, "OTEL_BSP_SCHEDULE_DELAY": "600000", "OTEL_SERVICE_NAME": "mine"}
        subprocess.run([sys.executable, "-c", code], env=env, check=True)
    [span] = collector.spans
    assert (span.name, span.service, span.failed) == ("last", "mine", True)
    wanted = {"n": 1, "huge": str(1 << 70), "id": "x?", "ids": ["?"], "long": "y" * 1000, "error.type": "timeout"}
    assert span.attributes == wanted
