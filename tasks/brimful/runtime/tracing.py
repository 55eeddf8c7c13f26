"""Spans of OpenTelemetry, in a process that has a tracer provider. In any other process, each costs one look-up.

A service configures OpenTelemetry as it likes, or runs under ``opentelemetry-instrument``; brimful's own processes call
:func:`brimful.runtime.span_export.set_up`. Whoever configures it imports ``opentelemetry.trace``: where
that is not loaded, there is no provider, and brimful does not load it.

Spans hold names and numbers, never a prompt, a completion, a key or the text of an exception.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_NAME = "brimful"
_LONGEST = 1000
"""Characters of an attribute."""
_INT64 = range(-(1 << 63), 1 << 63)
_NAMED = "OTEL_PYTHON_TRACER_PROVIDER" in os.environ
"""The API makes the provider that this variable names when it is first asked for one."""
_tracer: tuple[Any, Any] = (None, None)
"""The provider, and its tracer: asking it for one again and again is slow."""
_sent: ContextVar[Mapping[str, str]] = ContextVar("brimful_trace_headers")


def tracer() -> Any | None:
    """The tracer of this process's provider; None if it has none."""
    global _tracer
    trace = sys.modules.get("opentelemetry.trace")
    find = getattr(trace, "get_tracer_provider", None)  # absent while another thread imports the module
    if trace is None or find is None:
        return None
    # A short cut for processes that load the API without using it, as redis-py does. find() takes 20 times as long.
    if getattr(trace, "_TRACER_PROVIDER", find) is None and not _NAMED:
        return None
    provider = find()
    if provider is not _tracer[0]:
        proxy = isinstance(provider, trace.ProxyTracerProvider)  # none is set
        _tracer = (provider, None if proxy else provider.get_tracer(_NAME))
    return _tracer[1]


@contextmanager
def span(name: str, kind: str, attributes: Mapping[str, Any]) -> Iterator[Any | None]:
    """A new span, which is the current one in the block; None without a tracer.

    ``kind`` is the name of a ``SpanKind``, ``attributes`` are as in :func:`note`. An exception marks it as failed.
    """
    maker = tracer()
    if maker is None:
        yield None
        return
    trace = sys.modules["opentelemetry.trace"]
    begun = maker.start_span(name, kind=trace.SpanKind[kind], attributes=_exportable(attributes))
    with trace.use_span(begun, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield begun
        except BaseException as error:
            fail(begun, type(error).__name__)
            raise


def note(begun: Any, attributes: Mapping[str, Any]) -> None:
    """Add attributes to a span: those that are not None, in a form that can be exported."""
    begun.set_attributes(_exportable(attributes))


def _exportable(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _value(value) for name, value in attributes.items() if value is not None}


def _value(value: Any) -> Any:
    """A value that protobuf refuses, such as half a surrogate pair in an id, would cost the spans of a whole batch."""
    if isinstance(value, str):
        return value[:_LONGEST].encode("utf-8", "replace").decode()
    if isinstance(value, list | tuple):
        return [_value(one) for one in value]
    return value if not isinstance(value, int) or value in _INT64 else str(value)


def fail(begun: Any, kind: str, message: str = "") -> None:
    """Mark a span as failed. ``kind``: one of a small set, such as a cause. ``message``: safe to show to anybody."""
    trace = sys.modules["opentelemetry.trace"]
    begun.set_attribute("error.type", kind)
    begun.set_status(trace.Status(trace.StatusCode.ERROR, _value(message) or None))


@contextmanager
def sending(name: str, attributes: Mapping[str, Any]) -> Iterator[Any | None]:
    """The span of a message that is sent in the block; :func:`sent_headers` are those that name it."""
    with span(name, "PRODUCER", attributes) as begun:
        if begun is None:
            yield None
            return
        from opentelemetry import propagate

        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        token = _sent.set(carrier)
        try:
            yield begun
        finally:
            _sent.reset(token)


def sent_headers() -> Mapping[str, str]:
    """The headers of the message that is being sent, by which its receiver continues the trace."""
    return _sent.get({})


@contextmanager
def continued(header: Callable[[str], Any]) -> Iterator[None]:
    """Let the span that a message's or a request's headers name be the current one in the block.

    ``header(name)`` is its value, or None. A span that is current already (of Celery's or of a web server's
    instrumentation) stays so: it is a child of that one.
    """
    if tracer() is None or _current() is not None:
        yield
        return
    from opentelemetry import context, propagate

    found = {name: header(name) for name in propagate.get_global_textmap().fields}
    token = context.attach(propagate.extract({name: value for name, value in found.items() if isinstance(value, str)}))
    try:
        yield
    finally:
        context.detach(token)


def traceparent() -> bytes | None:
    """The current span, for other organisations: as the W3C's header, without ``tracestate`` and ``baggage``."""
    current = None if tracer() is None else _current()
    if current is None:
        return None
    return b"00-%032x-%016x-%02x" % (current.trace_id, current.span_id, current.trace_flags & 0xFF)


def ids() -> dict[str, str]:
    """``trace_id`` and ``span_id`` of the current span, for log records; empty without one."""
    current = None if tracer() is None else _current()
    return {} if current is None else {"trace_id": f"{current.trace_id:032x}", "span_id": f"{current.span_id:016x}"}


def _current() -> Any | None:
    found = sys.modules["opentelemetry.trace"].get_current_span().get_span_context()
    return found if found.is_valid else None
