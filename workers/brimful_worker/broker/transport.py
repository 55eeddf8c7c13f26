"""kombu's Redis channel, changed so that every unacknowledged task runs exactly once through outages of Redis.

What is changed, each found by experiment:

- Closing a channel whose connection is gone neither raises, which ended the worker, nor forgets half of the work.
- A lost connection requeues only messages that do not run here. Running tasks go on and are acknowledged later.
- An acknowledgement that cannot be sent is deferred; :mod:`brimful_worker.broker.renewal` sends it later.
- A message popped by a BRPOP under way when consuming ends is requeued at once instead of waiting in the socket.
- No queue may fill the whole worker (:mod:`brimful_worker.broker.fairness`).
- Renewal times are the server's. Abandoned messages are looked for only while Redis is stable, and each death of a
  worker is counted in the message.

Private parts of kombu 5.7.0:
    kombu.transport.redis.Channel: QoS, _basic_cancel, _brpop_read, _brpop_start, _close_clients,
        _connparams, _create_client, _disconnect_pools, _get_message_priority, _in_poll, _lookup, _pool, _q_for_pri,
        _queue_cycle, close, conn_or_acquire
    kombu.transport.redis.QoS: _delivered, _flush, ack, append, pipe_or_acquire, reject, restore_by_tag,
        restore_unacked, restore_unacked_once, restore_visible
    kombu.transport.redis: Mutex, MutexHeld, SentinelChannel
    kombu.transport.redis.Transport: Channel
    kombu.transport.redis.SentinelTransport: Channel
    kombu.transport.virtual.base.Channel: close
    kombu.transport.virtual.base.Message: _raw
    kombu.transport.virtual.base.QoS: ack, append
"""

# mypy: disallow-untyped-calls=False
from __future__ import annotations

import logging
from importlib import resources
from queue import Empty
from typing import Any

from celery import Celery
from kombu import connection
from kombu.asynchronous import get_event_loop
from kombu.transport import redis as transport
from kombu.transport import virtual
from kombu.transport.redis import Mutex, MutexHeld
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads
from redis.backoff import NoBackoff
from redis.retry import Retry

from brimful_worker.broker.fairness import fairness
from brimful_worker.broker.unacked import unacked

log = logging.getLogger(__name__)

_TIMER_S = 0.001
"""Added to a pause, so that its timer does not fire just before the pause has ended."""

LOST_HEADER = "brimful_lost"
"""Message header: how many workers have died with this task."""

_REQUEUE = resources.files("brimful_worker.broker").joinpath("requeue.lua").read_text("utf-8")


class QoS(transport.QoS):
    """The messages that this channel delivered and that are not acknowledged."""

    def append(self, message: Any, delivery_tag: str) -> None:
        delivery = message.delivery_info
        raw = dumps([message._raw, delivery["exchange"], delivery["routing_key"]])
        with self.pipe_or_acquire() as pipe:
            pipe.zadd(self.unacked_index_key, {delivery_tag: unacked.server_time()})
            pipe.hset(self.unacked_key, delivery_tag, raw).execute()
        if pause := fairness.received(delivery["routing_key"], len(raw)):
            _wake_after(pause)
        virtual.QoS.append(self, message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        try:
            super().ack(delivery_tag)
        except self.channel.connection_errors as error:
            unacked.defer_ack(delivery_tag)
            log.warning("cannot acknowledge a task (%s); done when Redis is back", type(error).__name__)
            virtual.QoS.ack(self, delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        try:
            super().reject(delivery_tag, requeue=requeue)
        except self.channel.connection_errors as error:
            if not requeue:
                unacked.defer_ack(delivery_tag)
            log.warning("cannot requeue a task (%s); another worker does it", type(error).__name__)
            virtual.QoS.ack(self, delivery_tag)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        for tag in unacked.kept():
            self._delivered.pop(tag, None)
        super().restore_unacked_once(stderr)

    def restore_unacked(self, client: Any = None) -> None:
        """Requeue what neither runs here nor has a deferred acknowledgement."""
        self._flush()
        kept = unacked.kept()
        tags = [tag for tag in self._delivered if tag not in kept]
        for tag in tags:
            unacked.remove(tag)
        try:
            for tag in tags:
                self.restore_by_tag(tag, client)
        except self.channel.connection_errors as error:
            # They are renewed no longer, so another worker requeues them soon.
            log.warning("cannot requeue unstarted tasks (%s)", type(error).__name__)
        self._delivered.clear()

    def restore_by_tag(self, tag: str, client: Any = None, leftmost: bool = False) -> None:
        with self.channel.conn_or_acquire(client) as connection:
            self._requeue(connection, tag, "tail" if leftmost else "head", None)

    def restore_visible(self, start: int = 0, num: int = 10, interval: int = 10) -> None:
        """Requeue what dead workers left. Every worker does this every few seconds."""
        if not unacked.stable():
            return  # after an outage the others must renew first, or their running tasks would count as abandoned
        abandoned = unacked.server_time() - self.visibility_timeout
        try:
            with (
                self.channel.conn_or_acquire() as client,
                Mutex(client, self.unacked_mutex_key, self.unacked_mutex_expire),
            ):
                kept = unacked.kept()
                for tag in client.zrange(self.unacked_index_key, "-inf", abandoned, byscore=True):
                    if bytes_to_str(tag) not in kept and self._requeue(client, tag, "head", abandoned):
                        log.warning("requeued a task whose worker died")
        except MutexHeld:
            pass

    def _requeue(self, client: Any, tag: Any, place: str, abandoned: float | None) -> bool:
        read = client.hget(self.unacked_key, tag)
        if read is None:
            if abandoned is not None:
                client.zrem(self.unacked_index_key, tag)
            return False
        message, exchange, routing_key = loads(bytes_to_str(read))
        headers = message.setdefault("headers", {})
        headers["redelivered"] = True
        message.get("properties", {}).get("delivery_info", {})["redelivered"] = True
        if abandoned is not None:
            headers[LOST_HEADER] = int(headers.get(LOST_HEADER) or 0) + 1
        priority = self.channel._get_message_priority(message, reverse=False)
        done = False
        for queue in self.channel._lookup(exchange, routing_key):
            key = self.channel._q_for_pri(queue, priority)
            keys = [self.unacked_key, self.unacked_index_key, key]
            latest = "" if abandoned is None else repr(abandoned)
            done |= bool(client.eval(_REQUEUE, len(keys), *keys, tag, read, dumps(message), place, latest))
        return done


def _wake_after(seconds: float) -> None:
    # The hub polls its channels after each wake-up. It computes how long to sleep before it calls them, so a timer
    # that they set then would come too late.
    if (hub := get_event_loop()) is not None:
        hub.call_later(seconds + _TIMER_S, lambda: None)


class Channel(transport.Channel):
    """A channel that can be closed without Redis."""

    QoS = QoS

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        consume = self._queue_cycle.consume

        def consume_unfilled(n: int) -> list[str]:
            full = fairness.full_queues()  # asked again when a task has ended
            return [queue for queue in consume(n) if queue not in full]

        self._queue_cycle.consume = consume_unfilled

    def blocking_client(self) -> Any:
        """A client of its own connection pool, for any one thread."""
        return self._create_client()

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
        if fairness.pause_s() and get_event_loop() is not None:
            return  # other workers go first
        super()._brpop_start(timeout)

    def _basic_cancel(self, consumer_tag: str) -> Any:
        result = super()._basic_cancel(consumer_tag)
        if not self.active_queues:
            self._read_pending()
        return result

    def _read_pending(self) -> None:
        """Take the reply of a BRPOP under way, at most a second; without consumers kombu requeues its message."""
        if not self._in_poll:
            return
        try:
            self._brpop_read()
        except (Empty, *self.connection_errors):
            self._in_poll = False


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
