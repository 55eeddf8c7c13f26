"""The fields that log records, spans, outcomes and error records of one request have in common.

They are set once for each task or request, and hold in the coroutine that sets them and in those that it starts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any

from brimful.outcome import Failure, Outcome
from brimful.words.counted import counted

EXTRA = frozenset({"attempt", "caller", "cause", "method", "path", "provider_request_ids", "seconds", "status"})
"""Attributes that brimful's own log records may have besides."""
_MOST_LINES = 16
"""Ids of lines that a packed request names at most."""
_NONE: Mapping[str, Any] = {}
_fields: ContextVar[Mapping[str, Any]] = ContextVar("brimful_log_fields", default=_NONE)


def describe(**fields: Any) -> None:
    """Replace the fields of the current coroutine: ``request_id``, ``task_id``, ``run`` and ``units``, a request's
    manifest, which names its lines."""
    _fields.set(fields)


def described() -> dict[str, Any]:
    """The fields as they are shown: the ids of the request's lines in place of its manifest."""
    fields = _fields.get()
    if "units" not in fields:
        return dict(fields)
    return {**{name: value for name, value in fields.items() if name != "units"}, **_lines(fields["units"])}


def log_failure(log: logging.Logger, outcome: Outcome, failure: Failure) -> None:
    """Log a request that failed, at INFO: its caller gets the failure, and decides how serious it is."""
    attempts = counted(outcome.attempts, "attempt")
    log.info(
        "request %s failed after %s: %s: %s", outcome.id, attempts, failure.cause.value, failure.message,
        extra={
            "attempt": outcome.attempts, "cause": failure.cause.value, "status": failure.status,
            "provider_request_ids": outcome.provider_request_ids,
        },
    )  # fmt: skip


def _lines(units: Iterable[Any]) -> dict[str, Any]:
    """``line_id``; of a packed request the first ``line_ids``, and how many ``lines`` it carries."""
    try:
        ids = list(dict.fromkeys(str(unit[1]) for unit in units))
    except (TypeError, LookupError):
        return {}  # a malformed message, which fails by itself
    return {"line_id": ids[0]} if len(ids) == 1 else {"line_ids": ids[:_MOST_LINES], "lines": len(ids)}
