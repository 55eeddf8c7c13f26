"""A worker that starts asks the others what has been revoked, before it takes its first task.

Celery's own way ("mingle") waits a whole second for answers, at every start and every reconnection. Here it is as long
as an answer takes in practice.
"""

from __future__ import annotations

from typing import Any

from celery.worker.consumer.mingle import Mingle

_ANSWERS_S = 0.3


def install() -> None:
    """For this process. Idempotent."""
    Mingle.send_hello = _send_hello


def _send_hello(step: Mingle, consumer: Any) -> dict[str, Any]:
    inspect = consumer.app.control.inspect(timeout=_ANSWERS_S, connection=consumer.connection)
    answers: dict[str, Any] = inspect.hello(consumer.hostname, list(consumer.controller.state.revoked)) or {}
    answers.pop(consumer.hostname, None)  # its own
    return answers
