"""Sets aside messages that this worker cannot run, so that one bad message costs only itself.

A thread of its own writes the letter to Redis, stores FAILURE as the task's result, and only then gives the message up:
a worker that dies in between leaves it to the next one. While Redis is away, the thread waits for it. A message of
RabbitMQ is acknowledged on the main thread, since its channels are not thread-safe.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import redis
from celery import Celery
from celery.app.task import Context
from kombu.asynchronous import get_event_loop

from brimful.errors import BadRequest
from brimful.names import plain_queue
from brimful.state.dead_letters import DeadLetter, add, digest, shown_headers
from brimful.state.rabbitmq.reach import broker_errors
from brimful.state.redis_retry import refused_for_now, reply_text
from brimful_worker.broker.message_check import is_name
from brimful_worker.broker.rabbitmq import is_redis
from brimful_worker.broker.unacked import UnackedMessages, unacked
from brimful_worker.metrics import catalogue as metrics

log = logging.getLogger(__name__)

_LINKS = ("chord", "chain", "errbacks")
"""What a failure has to reach besides the task's own result."""
_ACKNOWLEDGE_S = 0.2
_WAITING = 1000
"""Letters that wait for Redis, at most. More make the worker wait before it takes further messages."""


@dataclass(frozen=True, slots=True)
class QueueItem:
    """A queue item that is not a message, but that Redis lists as unacknowledged."""

    delivery_tag: str
    channel: Any


@dataclass(eq=False)
class _Pending:
    """A letter to be written. Counts as one of the worker's unacknowledged messages while ``message`` is set."""

    letter: DeadLetter
    failure: Exception
    context: Context
    store: bool
    """Whether the task has a result to store."""
    message: Any
    of_main_thread: bool = False
    """The main thread acknowledges it, and nobody else."""
    written: bool = False
    acknowledged = False
    eta = time_start = None

    @property
    def queue(self) -> str:
        return plain_queue(self.letter.queue)


class DeadLetters:
    """The dead letters of one process. :meth:`set_aside` is for the main thread."""

    def __init__(self, messages: UnackedMessages = unacked, *, retry_s: float = 1.0) -> None:
        """``retry_s``: seconds from one try to the next while Redis is away."""
        self._messages = messages
        self._retry_s = retry_s
        self._waiting: queue.Queue[_Pending | None] = queue.Queue(_WAITING)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._app: Celery | None = None
        self._worker = ""
        self._client: redis.Redis | None = None
        self._connection: Any = None
        self._to_acknowledge: list[_Pending] = []
        """On the main thread, once they are written."""

    def start(self, app: Celery, worker: str) -> None:
        """``worker`` is the node's name."""
        self._app, self._worker = app, worker
        self._thread = threading.Thread(target=self._main, name="brimful-dead-letters", daemon=True)
        self._thread.start()

    def stop(self, grace_s: float) -> None:
        """Waits at most ``grace_s`` seconds for letters that are not written yet. Idempotent."""
        self._stop.set()
        if self._thread is not None and self._thread.is_alive():
            self._waiting.put(None)
            self._thread.join(grace_s)

    def set_aside(
        self,
        why: str,
        *,
        content: Any,
        headers: Any,
        queue: str,
        id: Any = None,
        embed: Any = None,
        failure: Exception | None = None,
        message: Any = None,
    ) -> str | None:
        """Returns the id of the task that fails by this, if the message has a usable one.

        ``content`` is what the digest is of. ``message``: kombu's, or a QueueItem, if Redis lists it as unacknowledged;
        it is acknowledged once the letter and the result are stored. ``failure`` None: a BadRequest that says why.
        """
        known = headers if isinstance(headers, Mapping) else {}
        task_id = next(filter(is_name, (known.get("id"), id)), None)
        task = known.get("task")
        sha256, size = digest(content)
        letter = DeadLetter(
            why=why,
            queue=queue,
            at=time.time(),
            worker=self._worker,
            id=task_id,
            task=task[:100] if isinstance(task, str) else None,
            sha256=sha256,
            size=size,
            headers=shown_headers(headers),
        )
        log.error("set aside a message of the queue %r: %s (id %r, sha256 %s)", queue, why, task_id, sha256)
        metrics.DEAD_LETTERS.inc()
        group = known.get("group")
        links = {name: embed.get(name) for name in _LINKS} if isinstance(embed, Mapping) else {}
        context = Context(links, id=task_id, task=letter.task, group=group if is_name(group) else None)
        failure = failure or BadRequest(f"the task's message cannot be run: {why}")
        pending = _Pending(letter, failure, context, not self._ignores_result(known), message)
        if message is not None:
            self._hand_over(pending)
        self._waiting.put(pending)
        return task_id

    def _hand_over(self, pending: _Pending) -> None:
        message = pending.message
        if (leave := getattr(getattr(message.channel, "qos", None), "leave_to_other_thread", None)) is not None:
            self._messages.add(message.delivery_tag, pending)
            leave(message.delivery_tag)
        else:
            pending.of_main_thread = True
            self._to_acknowledge.append(pending)
            if len(self._to_acknowledge) == 1:
                self._acknowledge_written()

    def _acknowledge_written(self) -> None:
        """Acknowledge the written ones of RabbitMQ, and look again a moment later until none are left."""
        for pending in [pending for pending in self._to_acknowledge if pending.written]:
            self._to_acknowledge.remove(pending)
            pending.message.ack_log_error(log, broker_errors())  # it redelivers what is not acknowledged
        if self._to_acknowledge and (hub := get_event_loop()) is not None:
            hub.call_later(_ACKNOWLEDGE_S, self._acknowledge_written)  # type: ignore[no-untyped-call]

    def _ignores_result(self, headers: Mapping[str, Any]) -> bool:
        task = self._app.tasks.get(headers.get("task")) if self._app and isinstance(headers.get("task"), str) else None
        return headers.get("ignore_result") is True or (task is not None and bool(task.ignore_result))

    # -- on its own thread

    def _main(self) -> None:
        while (pending := self._waiting.get()) is not None:
            if not self._write(pending.letter):
                continue  # the worker stops without Redis: the next one receives the message
            if pending.store and pending.letter.id is not None:
                self._fail(pending)
            pending.written = True
            if pending.message is not None and not pending.of_main_thread:
                self._messages.remove(pending.message.delivery_tag)
                self._messages.defer_ack(pending.message.delivery_tag)  # sent with the next renewal
        self._disconnect()

    def _write(self, letter: DeadLetter) -> bool:
        """False if Redis was away until the worker stopped. A letter that Redis refuses for good is only logged."""
        while True:
            try:
                if (client := self._connect()) is not None:
                    add(client, letter)
                return True
            except Exception as error:
                if isinstance(error, redis.ResponseError) and not refused_for_now(error):
                    log.error("a dead letter could not be kept: %s", reply_text(error))
                    return True
                log.debug("a dead letter waits for Redis: %s", type(error).__name__)
                self._disconnect()
            if self._stop.wait(self._retry_s):
                return False

    def _fail(self, pending: _Pending) -> None:
        assert self._app is not None
        try:
            self._app.backend.mark_as_failure(pending.letter.id, pending.failure, request=pending.context)
        except Exception as error:  # a linked task that is malformed too, or a backend that takes nothing
            log.error("the failure of the task %r is not stored in full: %s", pending.letter.id, type(error).__name__)

    def _connect(self) -> redis.Redis | None:
        """A client of the Redis that is the broker, or else the result backend. None: letters are only logged."""
        if self._client is None:
            assert self._app is not None
            if not is_redis(self._app):
                return getattr(self._app.backend, "client", None)
            self._connection = self._app.connection_for_write()
            self._client = self._connection.channel().blocking_client()
        return self._client

    def _disconnect(self) -> None:
        connection, self._connection, self._client = self._connection, None, None
        if connection is not None:
            try:
                connection.release()
            except Exception as error:
                log.debug("closing the dead letters' connection: %r", error)


dead_letters = DeadLetters()
"""This process's."""
