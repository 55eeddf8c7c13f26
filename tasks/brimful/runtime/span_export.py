"""Exports the spans of brimful's own processes, as the standard ``OTEL_*`` variables say.

Services configure OpenTelemetry themselves, so :mod:`brimful.runtime.tracing` does not import it.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable
from importlib.metadata import entry_points

from brimful.runtime.tracing import tracer

log = logging.getLogger(__name__)

_EXPORTERS = "opentelemetry_traces_exporter"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_CLOSE_S = 3.0
"""How long a process that ends waits for its last spans to be sent."""

_closing: Callable[[], None] | None = None


def set_up(service: str, instance: str = "") -> None:
    """Export this process's spans, if ``OTEL_TRACES_EXPORTER`` or an OTLP endpoint is set, unless it has a provider.

    ``service`` and ``instance`` describe it where OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES do not. What is
    missing or wrong is logged: a process works without its spans. :func:`close` is called when it ends.
    """
    global _closing
    names = exporters()
    if not names or tracer() is not None:
        return
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        log.warning("spans are not exported: OTEL_… variables are set, but OpenTelemetry is not installed: "
                    "pip install 'brimful[otel]'")  # fmt: skip
        return
    described = {"service.name": service, **({"service.instance.id": instance} if instance else {})}
    resource = Resource.create({**described, **OTELResourceDetector().detect().attributes})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    try:
        for name in names:
            [entry] = entry_points(group=_EXPORTERS, name=name) or [None]
            if entry is None:
                known = ", ".join(sorted(entry_points(group=_EXPORTERS).names))
                log.warning("spans are not exported: there is no exporter %s; installed are %s", name, known)
                return
            provider.add_span_processor(BatchSpanProcessor(entry.load()()))
    except Exception as error:  # an exporter's constructor reads variables of its own
        log.warning("spans are not exported: %s: %s", type(error).__name__, error)
        return
    trace.set_tracer_provider(provider)
    _closing = provider.shutdown
    atexit.register(close)


def exporters() -> list[str]:
    """Names of the exporters that the environment asks for, as the SDK registers them."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    wanted = os.environ.get("OTEL_TRACES_EXPORTER") or ("otlp" if any(map(os.environ.get, _ENDPOINTS)) else "")
    protocol = next(filter(None, map(os.environ.get, _PROTOCOLS)), "")
    otlp = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    names = [name.strip() for name in wanted.split(",")]
    return [otlp if name == "otlp" else name for name in names if name not in ("", "none")]


def close() -> None:
    """Send the last spans, within some seconds: a collector that is away does not hold up the end. Idempotent."""
    global _closing
    closing, _closing = _closing, None
    if closing is not None:
        thread = threading.Thread(target=closing, name="brimful-spans", daemon=True)
        thread.start()
        thread.join(_CLOSE_S)
