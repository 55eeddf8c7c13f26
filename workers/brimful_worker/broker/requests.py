"""Celery's Request, as our workers use it: discreet, counted among the leases, and wise to poison."""

from __future__ import annotations

import os
from typing import Any

from billiard.einfo import ExceptionInfo
from celery.worker.request import Request

from brimful.names import TASK_SAMPLE, TASK_SHARD
from brimful.outcome import Cause, Failure
from brimful.runtime.redaction import describe
from brimful_worker.broker.renewal import MAX_LOST
from brimful_worker.broker.transport import LOST_HEADER
from brimful_worker.broker.unacked import leases


def lost_too_often(headers: Any) -> Failure | None:
    """A failure, where too many workers have died with the task of these headers."""
    lost = headers.get(LOST_HEADER)
    if not isinstance(lost, int) or lost < MAX_LOST:
        return None
    return Failure(Cause.WORKER_LOST, f"{lost} workers died while they had this task; it is not given to another")


class WorkerRequest(Request):  # type: ignore[misc]  # celery ships no types
    """One delivered task message."""

    def __init__(self, message: Any, **options: Any) -> None:
        super().__init__(message, **options)
        described = describe(self._type, self._args, self._kwargs)
        if described is not None:  # whoever published it: its arguments are shown to nobody
            self._argsrepr, self._kwargsrepr = described
            self._request_dict["argsrepr"], self._request_dict["kwargsrepr"] = described
        leases.add(message.delivery_tag, self)

    def info(self, safe: bool = False) -> Any:
        """For ``inspect``: our own tasks' arguments only as their description."""
        discreet = describe(self._type, self._args, self._kwargs) is not None
        told: dict[str, Any] = super().info(safe=safe or discreet)
        if told["worker_pid"] is not None:  # what the pool calls its jobs by, one number each
            told["worker_pid"] = os.getpid()
        return told

    def revoked(self) -> bool:
        """Celery's last question before a task goes to the pool; here it also ends a poisonous one."""
        if super().revoked():
            return True
        if self._type in (TASK_SAMPLE, TASK_SHARD):
            return False  # our own tasks say it as an outcome
        failure = lost_too_often(self._request_dict)
        if failure is None:
            return False
        try:
            raise failure.error()
        except Exception:
            self.on_failure(ExceptionInfo())
        self._already_revoked = True
        return True
