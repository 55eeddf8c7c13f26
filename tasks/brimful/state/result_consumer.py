"""Waits for Celery results in Redis through outages of any length: ``.get()`` ends with the result or its own timeout.

Celery's own consumer gives up after about 25 seconds without Redis, and then never sees a result that was stored
meanwhile. This one tries again as long as somebody waits. It also reads the awaited results now and then, since a
message that was published while a connection was broken does not come again. A result that cannot be read ends the
waits for it with an error, and no other wait.

Private parts of celery 5.7.0:
    celery.backends.asynchronous.BaseResultConsumer: _connection_errors, reconnect_on_error
    celery.backends.base.BaseBackend: _pending_messages, _pending_results
    celery.backends.base.BaseKeyValueStoreBackend: _strip_prefix
    celery.backends.redis.RedisBackend: result_consumer
    celery.backends.redis.ResultConsumer: _decode_result, _get_key_for_task, _locked, _pending_unsubscribe, _pubsub,
        _reconnect, subscribed_to
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from celery import states
from celery.backends.redis import RedisBackend, ResultConsumer
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult
from redis.exceptions import AuthenticationError

from brimful.errors import Cancelled
from brimful.outcome import Cause, Failure
from brimful.state.probes import unreachable
from brimful.words.phrases import cut

log = logging.getLogger(__name__)

_LOG_AGAIN_S = 60.0
_CHUNK = 500
_REASON_SHOWN = 200  # characters


def keep_waiting(backend: Any) -> Any:
    """The backend; if it is Celery's for Redis, waits for its results outlive outages."""
    if isinstance(backend, RedisBackend):
        backend.result_consumer = PatientConsumer(
            backend, backend.app, backend.accept, backend._pending_results, backend._pending_messages
        )
    return backend


def end_waits(backend: Any, ids: Iterable[str]) -> None:
    """Threads that wait for these results raise :class:`Revoked` within about a second."""
    for id in ids:
        meta = {"task_id": id, "status": states.REVOKED, "result": revoked(), "traceback": None, "children": []}
        backend.result_consumer.on_state_change(meta, None)


class Revoked(Cancelled, TaskRevokedError):  # type: ignore[misc]
    """What a handle's ``get`` raises for a request that was revoked. Code that knows only Celery's error catches it."""


class SampleResult(AsyncResult):  # type: ignore[misc]
    """Celery's handle, whose ``get`` raises :class:`brimful.errors.Cancelled` where Celery's own raises its own."""

    def throw(self, *error: Any, **more: Any) -> Any:
        if error and isinstance(error[0], TaskRevokedError):
            error = (revoked(), *error[1:])
        return super().throw(*error, **more)


def revoked() -> Revoked:
    return Revoked("the request was revoked", "cancelled")


def read_result(backend: Any, id: str, stored: bytes | str) -> dict[str, Any]:
    """What Celery stored of the task: ``status``, ``result`` and more. If that cannot be read, the status is FAILURE,
    and the result an error that says why."""
    try:
        meta = _decoded(backend, stored)
    except Exception as error:
        reason = cut(f"{type(error).__name__}: {error}", _REASON_SHOWN)
        message = f"the stored result of task {id} cannot be read ({reason}); send the request again, as another task"
        failed = Failure(Cause.INTERNAL, message).error(request_id=id)
        meta = {"status": states.FAILURE, "result": failed, "traceback": None, "children": []}
    return {**meta, "task_id": id}


def _decoded(backend: Any, payload: Any) -> dict[str, Any]:
    meta: dict[str, Any] = backend.decode_result(payload)
    if missing := [name for name in ("status", "result") if name not in meta]:
        raise ValueError(f"it has no {missing[0]}")
    if meta["status"] in states.PROPAGATE_STATES and not isinstance(meta["result"], BaseException):
        raise ValueError("the task failed, but its error is missing")
    return meta


class _UnreadableMessage(Exception):
    """A message about a result that cannot be read, so that nobody knows which task it is about."""


class PatientConsumer(ResultConsumer):  # type: ignore[misc]  # celery ships no types
    """A ResultConsumer that may be without a connection: ``_pubsub`` is None then, ``subscribed_to`` what is awaited.

    Each call of ``drain_events``, about one a second, tries to connect once. Only a wrong password is raised.
    """

    read_again_s = 10.0
    """Seconds from one reading of the awaited results to the next."""
    _pubsub: Any
    _read_at = -math.inf
    _logged_at = 0.0

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._decode_result = self._decode_message

    @contextmanager
    def reconnect_on_error(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError:  # a poll without a message; redis-py's TimeoutError is another class
            raise
        except _UnreadableMessage:
            self._read_at = -math.inf  # the names of the keys say whose result it is
        except AuthenticationError as error:
            raise unreachable(str(self.backend.url), error) from None
        except self._connection_errors as error:
            with self._locked():
                pubsub, self._pubsub = self._pubsub, None
                if pubsub is not None:
                    pubsub.close()
            now = time.monotonic()
            if now - self._logged_at >= _LOG_AGAIN_S:
                self._logged_at = now
                log.warning("brimful: Redis does not answer (%s); still waiting for results", type(error).__name__)

    def stop(self) -> None:
        """Disconnect. A thread that still waits for a result connects again."""
        with self._locked():
            super().stop()
            self._pubsub = None

    def _reconnect(self) -> None:
        """Subscribe to what is awaited, then read what came before."""
        with self._locked(), self.reconnect_on_error():
            self.subscribed_to -= self._pending_unsubscribe
            self._pending_unsubscribe.clear()
            if not self.subscribed_to:
                return
            self._pubsub = self.backend.client.pubsub(ignore_subscribe_messages=True)
            self._pubsub.subscribe(*self.subscribed_to)
            self._read(self.subscribed_to)

    def _read(self, keys: Iterable[Any]) -> None:
        self._read_at = time.monotonic()
        keys = list(keys)
        for begin in range(0, len(keys), _CHUNK):
            chunk = keys[begin : begin + _CHUNK]
            for key, stored in zip(chunk, self.backend.client.mget(chunk), strict=True):
                if stored:
                    self._take(read_result(self.backend, self.backend._strip_prefix(key), stored))

    def _decode_message(self, data: Any) -> dict[str, Any]:
        try:
            meta = _decoded(self.backend, data)
        except Exception as error:
            raise _UnreadableMessage from error
        if "task_id" not in meta:
            raise _UnreadableMessage
        return meta

    def _take(self, meta: dict[str, Any]) -> None:
        """As Celery's ``on_wait_for_pending``, which drops the message of a result that was read instead."""
        self.on_state_change(meta, None)
        if meta["status"] in (states.SUCCESS, states.FAILURE):
            buffered = self.backend._pending_messages
            if (messages := buffered.pop(meta["task_id"], None)) is not None:
                buffered.total -= len(messages)

    def consume_from(self, task_id: str) -> None:
        with self._locked():
            if self._pubsub is not None or not self.subscribed_to:
                super().consume_from(task_id)
                return
            key = self._get_key_for_task(task_id)
            self._pending_unsubscribe.discard(key)
            self.subscribed_to.add(key)
            self._reconnect()

    def on_wait_for_pending(self, result: Any, **_: Any) -> None:
        """A failed read is left to ``drain_events``. Celery's would repeat it without regard to a timeout."""
        members = getattr(result, "results", None)
        with self.reconnect_on_error():
            if members is None:
                if stored := self.backend.get(self._get_key_for_task(result.id)):
                    self._take(read_result(self.backend, result.id, stored))
            else:
                self._read({self._get_key_for_task(one.id) for one in members})

    def drain_events(self, timeout: float | None = None) -> None:
        if self._pubsub is None:
            self._reconnect()
        elif time.monotonic() - self._read_at >= self.read_again_s:
            with self._locked(), self.reconnect_on_error():
                self._read(self.subscribed_to)
        super().drain_events(timeout)
