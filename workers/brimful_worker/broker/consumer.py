"""Celery's consumer, changed so that a message that cannot be run is set aside instead of ending the worker.

Private parts of celery 5.7.0:
    celery.worker.consumer.consumer.Consumer: create_task_handler, on_decode_error, on_invalid_task,
        on_unknown_message, on_unknown_task
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import amqp
import redis
from celery.exceptions import NotRegistered
from celery.worker.consumer.consumer import Consumer
from kombu.exceptions import OperationalError

from brimful_worker.broker.dead_letters import dead_letters
from brimful_worker.broker.message_check import check_arguments, check_body, check_headers

log = logging.getLogger(__name__)

BROKER_ERRORS = (redis.RedisError, amqp.AMQPError, ConnectionError, TimeoutError, OperationalError)
"""What a broker that is away or refuses raises. Other errors are the message's."""
_create_task_handler = Consumer.create_task_handler


def install() -> None:
    """For this process. Idempotent."""
    Consumer.create_task_handler = _create_guarded_handler
    Consumer.on_decode_error = _on_decode_error
    Consumer.on_unknown_message = _on_unknown_message
    Consumer.on_unknown_task = _on_unknown_task
    Consumer.on_invalid_task = _on_invalid_task


def caused_by_message(error: Exception) -> bool:
    """Whether the message caused ``error``, not the broker. redis-py raises DataError for a value it cannot send."""
    return isinstance(error, redis.DataError) or not isinstance(error, BROKER_ERRORS)


def _create_guarded_handler(self: Consumer, *args: Any, **options: Any) -> Callable[[Any], None]:
    handle = _create_task_handler(self, *args, **options)

    def on_message(message: Any) -> None:
        try:
            why = _check(message)
        except Exception as error:
            _on_decode_error(self, message, error)
            return
        if why is not None:
            set_aside(message, why, self.event_dispatcher)
            return
        try:
            handle(message)
        except Exception as error:
            if not caused_by_message(error):
                raise
            # The error's text may hold an argument, so only its place is logged.
            log.error("%s for a message:\n%s", type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))
            why = f"{type(error).__name__} when it was received; the worker's log has the place"
            set_aside(message, why, self.event_dispatcher)

    return on_message


def _check(message: Any) -> str | None:
    """What is wrong with it; None if nothing is. Raises what decoding the body raises."""
    headers, body = message.headers, message.payload
    if isinstance(body, Mapping) and ("args" in body or "task" not in headers):  # protocol 1
        return check_headers({**body, **headers}) or check_arguments(
            body.get("args", ()), body.get("kwargs", {}), {name: body.get(name) for name in ("callbacks", "errbacks")}
        )
    return check_headers(headers) or check_body(body)


def set_aside(message: Any, why: str, eventer: Any, failure: Exception | None = None) -> None:
    """Set aside a delivered message. ``eventer`` is Celery's event dispatcher; None sends no event."""
    try:
        body = message.payload
    except Exception:
        body = None
    embed = body[2] if isinstance(body, list | tuple) and len(body) == 3 else None
    headers = message.headers
    if isinstance(body, Mapping):
        headers = {**{name: value for name, value in body.items() if name not in ("args", "kwargs")}, **headers}
    failed = dead_letters.set_aside(
        why,
        content=message.body if message.body is not None else "",
        headers=headers,
        queue=str(message.delivery_info.get("routing_key")),
        id=message.properties.get("correlation_id"),
        embed=embed,
        failure=failure,
        message=message,
    )
    if failed is not None and eventer and eventer.enabled:
        eventer.send("task-failed", uuid=failed, exception=f"BadRequest({why!r})")


def _on_decode_error(self: Consumer, message: Any, error: Exception) -> None:
    kind = str(message.content_type)[:60]
    # The error's text may quote the body.
    why = f"the body of type {kind!r} cannot be decoded ({type(error).__name__})"
    set_aside(message, why, self.event_dispatcher)


def _on_unknown_message(self: Consumer, body: Any, message: Any) -> None:
    set_aside(message, "it is not a task's message", self.event_dispatcher)


def _on_unknown_task(self: Consumer, body: Any, message: Any, error: Exception) -> None:
    name = str(message.headers.get("task") or (body or {}).get("task"))[:100]
    set_aside(message, f"this worker knows no task {name!r}", self.event_dispatcher, NotRegistered(name))


def _on_invalid_task(self: Consumer, body: Any, message: Any, error: Exception) -> None:
    set_aside(message, str(error)[:200], self.event_dispatcher)  # quotes an ETA or an expiry only
