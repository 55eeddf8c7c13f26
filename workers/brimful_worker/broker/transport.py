"""kombu's Redis channel, changed so that every unacknowledged task runs exactly once through outages of Redis.

What is changed, each found by experiment:

- Closing a channel whose connection is gone neither raises, which ended the worker, nor forgets half of the work.
- What is delivered and not acknowledged is kept by :mod:`brimful_worker.broker.qos`.
- A message popped by a BRPOP under way when consuming ends is requeued at once instead of waiting in the socket.
- No queue may fill the whole worker (:mod:`brimful_worker.broker.fairness`). A BRPOP under way that leaves out a queue
  is ended as soon as that queue may be asked again.
- Where one urgent message waits, others often do: those for which places are free are taken with it, in one step with
  the note that they are delivered.
- A queue item that is no message is set aside (:mod:`brimful_worker.broker.dead_letters`) instead of ending the worker.

Private parts of kombu 5.7.0:
    kombu.transport.redis.Channel: _basic_cancel, _brpop_read, _brpop_start, _close_clients, _connparams,
        _create_client, _disconnect_pools, _flush_brpop_reauth, _in_poll, _pool, _q_for_pri, _queue_cycle,
        _receive_one, active_queues, close, codecs
    kombu.transport.redis: SentinelChannel
    kombu.transport.redis.Transport: Channel
    kombu.transport.redis.SentinelTransport: Channel
    kombu.transport.virtual.base.Channel: close
    kombu.transport.virtual.base.Transport: _deliver
"""

# mypy: disallow-untyped-calls=False
from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Iterable
from importlib import resources
from queue import Empty
from typing import Any

import redis
from celery import Celery
from kombu import connection
from kombu.asynchronous import get_event_loop
from kombu.transport import redis as transport
from kombu.transport import virtual
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads
from redis.backoff import NoBackoff
from redis.retry import Retry

from brimful.names import plain_queue
from brimful.state.redis_retry import refused_for_now, reply_text
from brimful_worker.broker.consumer import caused_by_message
from brimful_worker.broker.dead_letters import dead_letters
from brimful_worker.broker.fairness import URGENT, fairness
from brimful_worker.broker.message_check import check_item
from brimful_worker.broker.qos import QoS, wake_after
from brimful_worker.broker.unacked import unacked

log = logging.getLogger(__name__)

_REFUSED_S = 0.5
"""Pause after Redis has refused to give out a task."""
_LOG_AGAIN_S = 5.0
_UNBLOCK_TRIES = 3
_TAKEN_AT_ONCE = 32
"""Messages that one command takes at most: what is delivered next waits for the rest."""
_TAKE = resources.files("brimful_worker.broker").joinpath("take.lua").read_text("utf-8")


class Channel(transport.Channel):
    """A channel that can be closed without Redis."""

    QoS = QoS

    def __init__(self, *args: Any, **options: Any) -> None:
        self._refused_until = -_LOG_AGAIN_S
        self._kept_client: Any = None
        super().__init__(*args, **options)
        self._left_out: frozenset[str] = frozenset()
        """Queues that the BRPOP under way does not ask."""
        self._client_id: tuple[Any, int | None] = (None, None)
        """The socket on which BRPOP is sent, and the server's number for it."""
        self._more = False
        """Whether the last :meth:`_take_urgent` left messages in their queues."""
        consume = self._in_order = self._queue_cycle.consume

        def consume_unfilled(n: int) -> list[str]:
            queues = consume(n)
            self._left_out = self._full(queues)
            return [queue for queue in queues if queue not in self._left_out]

        self._queue_cycle.consume = consume_unfilled

    def _full(self, queues: Iterable[str]) -> frozenset[str]:
        full = fairness.full_queues()
        return frozenset(queue for queue in queues if plain_queue(queue) in full)

    def ask_again(self) -> None:
        """Take messages for places that are free by now. End the BRPOP under way if it leaves out a queue that may be
        asked; the next poll asks them all."""
        if self._more:
            self._take_urgent()
        if self._in_poll and self._left_out - self._full(self._left_out):
            self._end_pop()

    def _take_urgent(self) -> None:
        """Take interactive messages for which places are free, and deliver them."""
        self._more = False
        room = int(min(fairness.urgent_room(), self.qos.room(), _TAKEN_AT_ONCE))
        active = self._in_order(len(self.active_queues)) if self.active_queues else ()
        queues = [queue for queue in active if plain_queue(queue) in URGENT]
        if room < 1 or not queues or self._waits():
            return
        keys = [(queue, self._q_for_pri(queue, step)) for step in self.priority_steps for queue in queues]
        lists = [self.unacked_key, self.unacked_index_key, *(key for _, key in keys)]
        try:
            with self.conn_or_acquire() as client:
                taken = client.eval(_TAKE, len(lists), *lists, room, unacked.server_time())
        except self.ResponseError as error:
            self._refused(error)
            return
        self._more = len(taken) == room
        for number, tag, text in taken:
            with self.qos.noted(tag):
                self._deliver(keys[number - 1][0], text)

    def _waits(self) -> bool:
        """Whether no message may be taken now: other workers go first, or Redis has time to recover."""
        # A message that Redis does not let us note would be lost if this worker died: it takes no second one.
        return bool(fairness.pause_s() or time.monotonic() < self._refused_until or unacked.unrecorded())

    def _end_pop(self) -> bool:
        """End the BRPOP under way and deliver its message, if it has one; the server then has no other reply for it.

        Returns False where the server refuses to end it. It ends by itself within a second.
        """
        connection: Any = self._in_poll
        number = self._client_id[1]
        if number is None:
            return False
        with self.conn_or_acquire() as client:
            for _ in range(_UNBLOCK_TRIES):
                try:
                    ended = client.client_unblock(number)
                except self.ResponseError as error:
                    log.debug("the server does not end a BRPOP: %s", error)
                    self._client_id = (connection._sock, None)
                    return False
                if ended or connection.can_read(0):  # neither: it has not come to the server yet
                    with contextlib.suppress(Empty):
                        self._brpop_read()
                    return True
        return False

    def blocking_client(self) -> Any:
        """A client of its own connection pool, for any one thread."""
        return self._create_client()

    def _create_client(self, asynchronous: bool = False) -> Any:
        # kombu makes a client for every command, which costs more than the command.
        if asynchronous:
            return super()._create_client(asynchronous)
        if self._kept_client is None or self._kept_client.connection_pool is not self.pool:
            self._kept_client = super()._create_client()
        return self._kept_client

    def close(self) -> None:
        if self.closed:
            return
        self._read_pending()
        pool = self.pool  # running tasks acknowledge after the close, when the pool can no longer be made
        try:
            super().close()
        except self.connection_errors as error:
            log.debug("closing a channel without Redis: %r", error)
            self._disconnect_pools()
            self._close_clients()
            virtual.Channel.close(self)
        self._pool = pool

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        # redis-py's own retries would sleep for seconds on the main thread; all callers here retry by themselves.
        return {**super()._connparams(asynchronous), "retry": Retry(NoBackoff(), 0)}

    def _brpop_start(self, timeout: float | None = None) -> None:
        # A pause is not a BRPOP with a short timeout: an idle Redis checks timeouts only ten times a second.
        if self._waits() and get_event_loop() is not None:
            return
        connection = self.client.connection
        if self._client_id[0] is not connection._sock:
            connection.send_command("CLIENT", "ID")
            self._client_id = (connection._sock, None)  # of a server that refuses
            with contextlib.suppress(self.ResponseError):
                self._client_id = (connection._sock, connection.read_response())
        super()._brpop_start(timeout)

    def _brpop_read(self, **options: Any) -> Any:
        client = self.client
        try:
            try:
                reply = client.parse_response(client.connection, "BRPOP", **options)
            except self.connection_errors:
                client.connection.disconnect()  # the next poll connects again
                raise
            except redis.ResponseError as error:
                self._refused(error)
                raise Empty from None
            if not reply:
                raise Empty
            queue = bytes_to_str(reply[0]).rsplit(self.sep, 1)[0]
            self._queue_cycle.rotate(queue)
            self._deliver(queue, reply[1])
        finally:
            self._in_poll = False
            self._flush_brpop_reauth()
        if plain_queue(queue) in URGENT:
            self._take_urgent()
        return True

    def _refused(self, error: redis.ResponseError) -> None:
        """Redis gives out no message. Raises the error unless that may change."""
        if not refused_for_now(error):
            raise error
        now = time.monotonic()
        if now > self._refused_until + _LOG_AGAIN_S:
            log.warning("Redis gives out no task: %s; retrying", reply_text(error))
        self._refused_until = now + _REFUSED_S
        wake_after(_REFUSED_S)

    def _deliver(self, queue: str, raw: bytes) -> None:
        item: Any = None
        try:
            item = loads(bytes_to_str(raw))
            why = check_item(item, self.codecs)
            if why is None:
                self.connection._deliver(item, queue)
                return
        except Exception as error:
            if item is not None and not caused_by_message(error):
                raise
            # Only what comes before the message is recorded as unacknowledged raises this: the consumer guards itself.
            why = f"the item is no message ({type(error).__name__})"
        self.qos.forget_noted()
        headers, id = _headers_and_id(raw)
        dead_letters.set_aside(why, content=raw, headers=headers, queue=queue, id=id)

    def _receive_one(self, client: Any) -> Any:
        try:
            return super()._receive_one(client)
        except Exception as error:
            if not caused_by_message(error):
                raise
            log.warning("ignored a malformed broadcast (%s)", type(error).__name__)
            return None

    def _basic_cancel(self, consumer_tag: str) -> Any:
        result = super()._basic_cancel(consumer_tag)
        if not self.active_queues:
            self._read_pending()
        return result

    def _read_pending(self) -> None:
        """Take the reply of a BRPOP under way; without consumers kombu requeues its message."""
        if not self._in_poll:
            return
        try:
            if not self._end_pop():
                self._brpop_read()
        except (Empty, *self.connection_errors):
            self._in_poll = False


def _headers_and_id(raw: bytes) -> tuple[Any, Any]:
    """Of an item that is no message, as far as it has them. kombu's own types in it, if any, are left as they are."""
    try:
        item = json.loads(raw)
    except (ValueError, RecursionError):
        item = None
    if not isinstance(item, dict):
        return None, None
    properties = item.get("properties")
    return item.get("headers"), properties.get("correlation_id") if isinstance(properties, dict) else None


class SentinelChannel(Channel, transport.SentinelChannel):
    """The same behind Redis Sentinel."""


class Connection(connection.Connection):
    """Reconnects every three seconds at the slowest; kombu's own pauses grow to half a minute."""

    def ensure_connection(self, *args: Any, **options: Any) -> Any:
        for option, seconds in (("interval_start", 0.5), ("interval_step", 0.5), ("interval_max", 3)):
            options.setdefault(option, seconds)
        return super().ensure_connection(*args, **options)


def install(app: Celery) -> None:
    """For this process: Redis connections made from now on use these channels. Idempotent."""
    transport.Transport.Channel = Channel
    transport.SentinelTransport.Channel = SentinelChannel
    app.amqp.Connection = Connection
