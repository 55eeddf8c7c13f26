"""Log records as JSON, one object a line: ``BRIMFUL_LOG_FORMAT=json``.

Of what libraries attach to a record, only the id and the name in Celery's ``data`` are written. The rest may hold
anything, such as a task's arguments.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

from celery import current_task

from brimful.config import Settings
from brimful.names import LogFormat
from brimful.runtime import json_bytes, tracing
from brimful_worker.logs.fields import EXTRA, described

_LOGGERS = ("", "celery", "celery.task", "celery.redirected")
"""Loggers that Celery may have given handlers of their own; ``""`` is the root."""


class RecordFormatter(logging.Formatter):
    """``time`` (UTC), ``level``, ``logger``, ``message`` and ``process`` of each record, then what is known of the task
    and the request that it is about."""

    def __init__(self, process: str, fleet: str = "") -> None:
        """``process``: the worker's node name, or what stands for it."""
        super().__init__()
        self._process = {"process": process, **({"fleet": fleet} if fleet else {})}

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self._process,
            **_task(getattr(record, "data", None)),
            **described(),
            **tracing.ids(),
        }
        fields |= {name: value for name, value in record.__dict__.items() if name in EXTRA and value is not None}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        if record.stack_info:
            fields["stack"] = record.stack_info
        return json_bytes.encode(fields).decode()


def use_log_format(settings: Settings, process: str) -> None:
    """Give this process's log handlers the format of the settings. Call it when the handlers are there."""
    if settings.log_format is not LogFormat.JSON:
        return
    formatter = RecordFormatter(process, settings.fleet)
    for name in _LOGGERS:
        for handler in logging.getLogger(name).handlers:
            handler.setFormatter(formatter)


def _task(data: Any) -> dict[str, str]:
    """The Celery task that a record is about, or else the one that is running here."""
    if isinstance(data, dict) and "id" in data:
        return {"task_id": str(data["id"]), "task": str(data.get("name"))}
    request = getattr(current_task, "request", None)
    if request is None or request.id is None:
        return {}
    return {"task_id": str(request.id), "task": str(current_task.name)}
