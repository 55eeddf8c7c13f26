"""Shortens Celery's mingle step, in which a starting worker asks the others which tasks were revoked.

Celery waits a whole second for replies, at every start and every reconnection.

Private parts of celery 5.7.0:
    celery.worker.consumer.mingle.Mingle: send_hello
"""

from __future__ import annotations

from typing import Any

from celery.worker.consumer.mingle import Mingle

_REPLY_S = 0.3


def install() -> None:
    """For this process. Idempotent."""
    Mingle.send_hello = _send_hello


def _send_hello(step: Mingle, consumer: Any) -> dict[str, Any]:
    inspect = consumer.app.control.inspect(timeout=_REPLY_S, connection=consumer.connection)
    replies: dict[str, Any] = inspect.hello(consumer.hostname, list(consumer.controller.state.revoked)) or {}
    replies.pop(consumer.hostname, None)  # this worker's own
    return replies
