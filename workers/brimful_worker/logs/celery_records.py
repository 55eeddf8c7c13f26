"""The worker's logs: brief at INFO, and never a prompt, a completion or the key.

Private parts of celery 5.7.0:
    celery.app.trace: LOG_SUCCESS, saferepr
    celery.worker.consumer.consumer: dump_body
"""

from __future__ import annotations

import logging
import time
import warnings
from typing import Any

from celery.app import trace
from celery.exceptions import CPendingDeprecationWarning, SecurityWarning
from celery.utils.saferepr import saferepr
from celery.worker.consumer import consumer

_REPEAT_S = 10.0
_QUIET = ("celery.worker.strategy", "kombu.connection", "celery.worker.consumer.mingle")
"""Log at INFO for each message or retry, with nothing in it for an operator."""


def ignore_warnings() -> None:
    """Celery's, about a setting of ours at each reconnection and about root in a container."""
    for warning in (CPendingDeprecationWarning, SecurityWarning):
        warnings.simplefilter("ignore", warning)


def install() -> None:
    """For this process. Idempotent."""
    trace.LOG_SUCCESS = "Task %(name)s[%(id)s] succeeded in %(runtime)ss"
    trace.saferepr = _result_repr
    consumer.dump_body = lambda message, body: f"<{len(message.body or ())} bytes>"
    for name in ("celery.worker.consumer.consumer", "celery.app.trace", "celery.backends.base"):
        logger = logging.getLogger(name)
        if not any(isinstance(one, _Redacting) for one in logger.filters):
            logger.addFilter(_Redacting())
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def _result_repr(value: Any, *args: Any, **options: Any) -> str:
    """How a task's return value is shown in events, and so in Flower."""
    if isinstance(value, dict) and isinstance(value.get("choices"), list):
        return f"<completion, {len(value['choices'])} choices>"
    return str(saferepr(value, *args, **options))


class _Redacting(logging.Filter):
    """Removes arguments from Celery's records, and tracebacks of what is no error."""

    def __init__(self) -> None:
        super().__init__()
        self._logged_at = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(_without_arguments(arg) for arg in record.args)
        if record.name == "celery.backends.base":
            record.exc_info = None  # "Retrying…" by every task that ends while Redis is away
            now = time.monotonic()
            if now - self._logged_at < _REPEAT_S:
                return False
            self._logged_at = now
        elif record.exc_info and record.exc_info[0] is not None and record.exc_info[0].__name__ == "Reject":
            record.exc_info = None  # work given back at a shutdown
            record.levelno, record.levelname = logging.INFO, "INFO"
        return True


def _without_arguments(value: Any) -> Any:
    if isinstance(value, dict) and "argsrepr" in value:
        return {name: content for name, content in value.items() if name not in ("argsrepr", "kwargsrepr")}
    return value
