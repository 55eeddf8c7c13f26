"""The worker's logs: modest at INFO, and never a prompt, a completion or the key."""

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

_QUIET = {
    # logged at INFO once per message or per retry, with nothing in it for an operator
    "celery.worker.strategy": logging.WARNING,
    "kombu.connection": logging.WARNING,
    "celery.worker.consumer.mingle": logging.WARNING,
}


def ignore_warnings() -> None:
    """Of Celery's: the one at every reconnection about a setting that we have made, and that root runs a container."""
    for warning in (CPendingDeprecationWarning, SecurityWarning):
        warnings.simplefilter("ignore", warning)


def install() -> None:
    """For this process. Idempotent."""
    trace.LOG_SUCCESS = "Task %(name)s[%(id)s] succeeded in %(runtime)ss"
    trace.saferepr = _result
    consumer.dump_body = _body
    for name in ("celery.worker.consumer.consumer", "celery.app.trace", "celery.backends.base"):
        logger = logging.getLogger(name)
        if not any(isinstance(one, _Discretion) for one in logger.filters):
            logger.addFilter(_Discretion())
    for name, level in _QUIET.items():
        logging.getLogger(name).setLevel(level)


def _result(value: Any, *args: Any, **options: Any) -> str:
    """How a task's return value is shown in events (and so in Flower)."""
    if isinstance(value, dict) and isinstance(value.get("choices"), list):
        return f"<completion, {len(value['choices'])} choices>"
    return str(saferepr(value, *args, **options))


def _body(message: Any, body: Any) -> str:
    """How a message that cannot be used is shown: by its size."""
    return f"<{len(message.body or ())} bytes>"


class _Discretion(logging.Filter):
    """Cuts out of Celery's records what repeats arguments, and tracebacks of what is no error."""

    def __init__(self) -> None:
        super().__init__()
        self._said_at = float("-inf")

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(_headers(arg) for arg in record.args)
        if record.name == "celery.backends.base":
            record.exc_info = None  # "Retrying…" while Redis is away, by every task that has ended meanwhile
            now = time.monotonic()
            if now - self._said_at < _REPEAT_S:
                return False
            self._said_at = now
        elif record.exc_info and record.exc_info[0] is not None and record.exc_info[0].__name__ == "Reject":
            record.exc_info = None  # work given back at a shutdown: no failure
            record.levelno, record.levelname = logging.INFO, "INFO"
        return True


def _headers(value: Any) -> Any:
    if isinstance(value, dict) and "argsrepr" in value:
        return {name: content for name, content in value.items() if name not in ("argsrepr", "kwargsrepr")}
    return value
