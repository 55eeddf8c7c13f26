"""kombu's Redis channel, made to survive outages: every unacknowledged task still runs exactly once.

What it changes, each found by trying (kombu 5.7):

- closing a channel whose connection is gone neither raises (that ended the worker) nor forgets half of the work;
- a lost connection gives back only what is not running here: running tasks go on and are acknowledged later;
- an acknowledgement that cannot be sent is owed, and sent by :mod:`brimful_worker.broker.renewal` when Redis is back;
- a message popped by a BRPOP under way when consuming ends goes back at once, and does not wait in the socket;
- batch work cannot take all of a worker, nor can interactive work;
- renewal times are the server's, abandoned messages are looked for only after Redis has been steadily there, and each
  death is counted in the message.
"""

# mypy: disallow-untyped-calls=False
from __future__ import annotations

import logging
import time
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

from brimful_worker.broker.fairness import shares
from brimful_worker.broker.unacked import leases

log = logging.getLogger(__name__)

_TIMER_S = 0.001
"""A timer that came this much too soon would find nothing to do yet."""

LOST_HEADER = "brimful_lost"
"""Message header: how many workers have died with this task."""

_GIVE_BACK = resources.files("brimful_worker.broker").joinpath("give_back.lua").read_text("utf-8")


class QoS(transport.QoS):
    """What this channel has delivered and nobody has acknowledged."""

    def append(self, message: Any, delivery_tag: str) -> None:
        delivery = message.delivery_info
        raw = dumps([message._raw, delivery["exchange"], delivery["routing_key"]])
        with self.pipe_or_acquire() as pipe:
            pipe.zadd(self.unacked_index_key, {delivery_tag: leases.server_time()})
            pipe.hset(self.unacked_key, delivery_tag, raw).execute()
        if moment := shares.took(delivery["routing_key"], len(raw)):
            _wake_after(moment)
        virtual.QoS.append(self, message, delivery_tag)

    def ack(self, delivery_tag: str) -> None:
        try:
            super().ack(delivery_tag)
        except self.channel.connection_errors as error:
            leases.owe(delivery_tag)
            log.warning("no Redis to acknowledge to (%s); it is done when Redis is back", type(error).__name__)
            virtual.QoS.ack(self, delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        try:
            super().reject(delivery_tag, requeue=requeue)
        except self.channel.connection_errors as error:
            if not requeue:
                leases.owe(delivery_tag)
            log.warning("no Redis to give a task back to (%s); another worker finds it", type(error).__name__)
            virtual.QoS.ack(self, delivery_tag)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        for tag in leases.held():
            self._delivered.pop(tag, None)
        super().restore_unacked_once(stderr)

    def restore_unacked(self, client: Any = None) -> None:
        """Give back what is neither running here nor waiting for its acknowledgement to be sent."""
        self._flush()
        held = leases.held()
        unheld = [tag for tag in self._delivered if tag not in held]
        for tag in unheld:
            leases.drop(tag)
        try:
            for tag in unheld:
                self.restore_by_tag(tag, client)
        except self.channel.connection_errors as error:
            # Nobody renews them any more, so that another worker finds them soon.
            log.warning("no Redis to give unstarted tasks back to (%s)", type(error).__name__)
        self._delivered.clear()

    def restore_by_tag(self, tag: str, client: Any = None, leftmost: bool = False) -> None:
        with self.channel.conn_or_acquire(client) as connection:
            self._give_back(connection, tag, "tail" if leftmost else "head", None)

    def restore_visible(self, start: int = 0, num: int = 10, interval: int = 10) -> None:
        """Give back what dead workers have left. Every worker does this every few seconds."""
        if not leases.steady():
            return  # Redis was away: let everybody renew first, or their running tasks would be taken for abandoned
        abandoned = leases.server_time() - self.visibility_timeout
        try:
            with (
                self.channel.conn_or_acquire() as client,
                Mutex(client, self.unacked_mutex_key, self.unacked_mutex_expire),
            ):
                held = leases.held()
                for tag in client.zrange(self.unacked_index_key, "-inf", abandoned, byscore=True):
                    if bytes_to_str(tag) not in held and self._give_back(client, tag, "head", abandoned):
                        log.warning("a dead worker's task goes to another")
        except MutexHeld:
            pass

    def _give_back(self, client: Any, tag: Any, place: str, abandoned: float | None) -> bool:
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
            done |= bool(client.eval(_GIVE_BACK, len(keys), *keys, tag, read, dumps(message), place, latest))
        return done


def _wake_after(seconds: float) -> None:
    """The hub asks its channels whenever it has woken. (It reckons how long it may sleep before it asks them: a timer
    that they set then would come too late.)"""
    if (hub := get_event_loop()) is not None:
        hub.call_later(seconds + _TIMER_S, _nothing)


def _nothing() -> None:
    pass


class Channel(transport.Channel):
    """A channel that can be closed without Redis."""

    QoS = QoS

    def close(self) -> None:
        if self.closed:
            return
        self._read_pending()
        pool = self.pool  # made now: running tasks acknowledge after the close, when its address is out of reach
        try:
            super().close()
        except self.connection_errors as error:
            log.debug("closing a channel without Redis: %r", error)
            self._disconnect_pools()
            self._close_clients()
            virtual.Channel.close(self)
        self._pool = pool

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        # redis-py's own retries sleep for seconds, on the main thread. Everybody here knows better when to try again.
        return {**super()._connparams(asynchronous), "retry": Retry(NoBackoff(), 0)}

    def _brpop_start(self, timeout: float | None = None) -> None:
        """Ask all queues but those that have their share of this worker already; a moment later where others come
        first. (Not by a BRPOP that ends then: Redis, when it has nothing else to do, looks ten times a second only.)"""
        if shares.moment() and get_event_loop() is not None:
            return
        full = shares.full()
        if not full:
            super()._brpop_start(timeout)
            return
        queues = [queue for queue in self._queue_cycle.consume(len(self.active_queues)) if queue not in full]
        if not queues:
            return  # asked again when a task has ended
        keys = [self._q_for_pri(queue, step) for step in self.priority_steps for queue in queues]
        self._in_poll = self.client.connection
        self._brpop_sent_at = time.monotonic()  # type: ignore[assignment]
        self.client.connection.send_command("BRPOP", *keys, timeout or self.brpop_timeout)

    def _basic_cancel(self, consumer_tag: str) -> Any:
        result = super()._basic_cancel(consumer_tag)
        if not self.active_queues:
            self._read_pending()
        return result

    def _read_pending(self) -> None:
        """Take the answer of a BRPOP under way; without consumers kombu puts its message back. At most a second."""
        if not self._in_poll:
            return
        try:
            self._brpop_read()
        except (Empty, *self.connection_errors):
            self._in_poll = False


class SentinelChannel(Channel, transport.SentinelChannel):
    """The same behind Redis Sentinel."""


class Connection(connection.Connection):
    """Looks for a lost Redis again and again, at most a few seconds apart: kombu's own pauses grow to half a minute."""

    def ensure_connection(self, *args: Any, **options: Any) -> Any:
        for option, seconds in (("interval_start", 0.5), ("interval_step", 0.5), ("interval_max", 3)):
            options.setdefault(option, seconds)
        return super().ensure_connection(*args, **options)


def install(app: Celery) -> None:
    """For this process: every Redis connection that is made from now on uses these channels. Idempotent."""
    transport.Transport.Channel = Channel
    transport.SentinelTransport.Channel = SentinelChannel
    app.amqp.Connection = Connection
