"""Celery's per-process worker state: the only module that reads it, so that an upgrade is checked in one place.

Private parts of celery 5.7.0:
    celery.worker.state: active_requests, maybe_shutdown, requests, should_terminate, successful_requests
    celery.worker.autoscale.Autoscaler: max_concurrency
"""

from __future__ import annotations

from typing import Any
from weakref import ref

from celery.signals import worker_ready
from celery.worker import state
from celery.worker.control import inspect_command

ENDED = "brimful_ended"
"""A remote control command: which tasks of ``ids`` succeeded in this worker. Celery remembers the last 1,000 ids."""

_worker: Any = lambda: None  # noqa: E731  # a reference that is dead


def reserved_requests() -> list[Any]:
    """Requests received and not finished, those waiting for their ETA included. From any thread."""
    return list(state.requests.values())


def running_requests() -> list[Any]:
    """Requests that the pool has accepted. Main thread only."""
    return list(state.active_requests)


def cold_shutdown() -> bool:
    """Whether a cold shutdown has begun. ``should_terminate`` may be an exit code, 0 included."""
    return state.should_terminate is not None and state.should_terminate is not False


def raise_if_shutting_down() -> None:
    """Raises celery's WorkerShutdown or WorkerTerminate after a signal. Main thread only."""
    state.maybe_shutdown()


def autoscale_maximum() -> int:
    """The most tasks that Celery's autoscaler lets the pool run; 0 without one."""
    scaler = getattr(_worker(), "autoscaler", None)
    return 0 if scaler is None else int(scaler.max_concurrency)


@worker_ready.connect  # type: ignore[untyped-decorator]
def _remember(sender: Any, **_: Any) -> None:
    global _worker
    _worker = ref(sender.controller)


@inspect_command(name=ENDED, variadic="ids", signature="[id1 [id2 [... [idN]]]]")  # type: ignore[untyped-decorator]
def _ended(_panel: Any, ids: list[str], **_: Any) -> dict[str, Any]:
    """Tasks that have succeeded in this worker, of those given."""
    return {"succeeded": [id for id in ids if id in state.successful_requests]}
