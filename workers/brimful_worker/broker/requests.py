"""Celery's Request with redacted arguments, unacked-message renewal and poison-message detection.

Private parts of celery 5.7.0:
    celery.worker.request.Request: _already_revoked, _argsrepr, _kwargsrepr, cancel, _eventer, info, on_accepted,
        on_failure, on_success, revoked
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from billiard.einfo import ExceptionInfo
from celery.app.task import Task
from celery.signals import task_revoked
from celery.worker.request import Request

from brimful.names import TASK_SAMPLE, TASK_SHARD, plain_queue
from brimful.outcome import Cause, Failure
from brimful.runtime.redaction import describe
from brimful.state.redis_retry import REDIS_ERRORS
from brimful.state.revocations import TERMINATE, record_revoked
from brimful_worker.broker.consumer import caused_by_message, set_aside
from brimful_worker.broker.qos import QoS, lost_count
from brimful_worker.broker.unacked import unacked

log = logging.getLogger(__name__)

MAX_LOST = 5
"""Deaths of workers that ran a task, after which it fails as poison instead of being run again."""
SAMPLING_TASKS = frozenset({TASK_SAMPLE, TASK_SHARD})
"""Of their requests the admission counts the deaths, and :mod:`brimful_worker.sampling.suspects` judges them."""


def install() -> None:
    """For this process: Celery makes a WorkerRequest of every message. Idempotent."""
    Task.Request = WorkerRequest
    task_revoked.connect(_record_revoked_shard)


def _record_revoked_shard(sender: Any, request: Any, expired: bool = False, **_: Any) -> None:
    """Let the run's submitter know, whoever revoked the shard: without it, it would enqueue the shard again."""
    if sender.name != TASK_SHARD or expired:
        return
    try:
        record_revoked(sender.app, [request.id], TERMINATE)
    except REDIS_ERRORS as error:
        log.warning("cannot record that shard %s was revoked: %s", request.id, type(error).__name__)


def _poison_failure(headers: Any) -> Failure | None:
    """The failure of a task during which :data:`MAX_LOST` workers have died; None for any other."""
    lost = lost_count(headers)
    if lost < MAX_LOST:
        return None
    return Failure(Cause.WORKER_LOST, f"{lost} workers died while they ran this task; it is not given to another")


class WorkerRequest(Request):  # type: ignore[misc]  # celery ships no types
    """One delivered task message."""

    def __init__(self, message: Any, **options: Any) -> None:
        if message.headers.get("task") in SAMPLING_TASKS and not options.get("decoded"):
            # Celery would decode the body a second time, in the tracer's thread: milliseconds for a large shard.
            options |= {"body": message.payload, "decoded": True}
        super().__init__(message, **options)
        described = describe(self.type, self.args, self.kwargs)
        if described is not None:  # the publisher may have put the arguments there
            self._argsrepr, self._kwargsrepr = described
            self.request_dict["argsrepr"], self.request_dict["kwargsrepr"] = described
        self.queue = plain_queue(str(self.delivery_info.get("routing_key")))
        unacked.add(message.delivery_tag, self)

    def leave_place(self) -> None:
        """The body has ended: another message may come, though this one is acknowledged only later. Main thread."""
        if isinstance(qos := getattr(self.message.channel, "qos", None), QoS):
            qos.leave_place(self.message.delivery_tag)

    def info(self, safe: bool = False) -> Any:
        """For ``inspect``: the arguments of brimful's own tasks only as their description."""
        redacted = describe(self.type, self.args, self.kwargs) is not None
        shown: dict[str, Any] = super().info(safe=safe or redacted)
        if shown["worker_pid"] is not None:  # the pool accepts each task under a number of its own
            shown["worker_pid"] = os.getpid()
        return shown

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        if self.eta is not None:
            unacked.begun(self.message.delivery_tag, self.queue)
        qos = getattr(self.message.channel, "qos", None)
        if self.type not in SAMPLING_TASKS and self.task.acks_late and isinstance(qos, QoS):  # else it is not Redis's
            qos.note_begun(self.message.delivery_tag)
        super().on_accepted(pid, time_accepted)

    def cancel(self, pool: Any, signal: Any = None, emit_retry: bool = True) -> None:
        """Celery cancels running tasks when a cold shutdown begins, before it stops the pool.

        The bodies must know of the shutdown first: else they take it for a revocation, and cancel their Jobs.
        """
        pool.announce_shutdown()
        super().cancel(pool, signal, emit_retry)

    def on_success(self, failed__retval__runtime: Any, **options: Any) -> Any:
        return self._guarded(super().on_success, failed__retval__runtime, **options)

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        return self._guarded(super().on_failure, exc_info, send_failed_event, return_ok)

    def _guarded(self, end: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Celery reads headers and linked tasks when a task ends. If they break that, its message is set aside."""
        try:
            return end(*args, **options)
        except Exception as error:
            if self.acknowledged or not caused_by_message(error):
                raise
            why = f"{type(error).__name__} when its task ended"
            set_aside(self.message, why, self._eventer)

    def revoked(self) -> bool:
        """Celery asks this last before a task goes to the pool. A poison message is failed here."""
        if super().revoked():
            return True
        if self.type in SAMPLING_TASKS:
            return False
        failure = _poison_failure(self.request_dict)
        if failure is None:
            return False
        try:
            raise failure.error()
        except Exception:
            self.on_failure(ExceptionInfo())
        self._already_revoked = True
        return True
