"""kombu's Redis channel, changed so that an outage of Redis neither loses nor repeats a task that a live worker holds.

What is changed, each found by experiment:

- Closing a channel whose connection is gone neither raises, which ended the worker, nor forgets half of the work.
- What is delivered and not acknowledged is kept by :mod:`brimful_worker.broker.qos`.
- Messages are taken and noted as unacknowledged in one step (:mod:`brimful_worker.broker.taking`).
- A message taken while consuming ends is requeued at once.
- No queue may fill the whole worker (:mod:`brimful_worker.broker.fairness`).
- A queue item that is no message is set aside (:mod:`brimful_worker.broker.dead_letters`) instead of ending the worker.
- Expiring bindings, which are refreshed every 20 minutes, are looked at once a minute and not every second.

Private parts of kombu 5.7.0:
    kombu.transport.redis.Channel: _basic_cancel, _close_clients, _connparams, _create_client, _disconnect_pools, _pool,
        _receive_one, close, codecs
    kombu.transport.redis: SentinelChannel
    kombu.transport.redis.Transport: Channel, register_with_event_loop
    kombu.transport.redis.MultiChannelPoller: maybe_refresh_binding_expiry
    kombu.transport.redis.SentinelTransport: Channel
    kombu.transport.virtual.base.Channel: close
    kombu.transport.virtual.base.Transport: _deliver
"""

# mypy: disallow-untyped-calls=False
from __future__ import annotations

import logging
from typing import Any

from celery import Celery
from kombu import connection
from kombu.transport import redis as transport
from kombu.transport import virtual
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads
from redis.backoff import NoBackoff
from redis.retry import Retry

from brimful_worker.broker.consumer import caused_by_message
from brimful_worker.broker.dead_letters import QueueItem, dead_letters
from brimful_worker.broker.message_check import check_item, headers_and_id
from brimful_worker.broker.qos import QoS
from brimful_worker.broker.taking import TakingChannel

log = logging.getLogger(__name__)

_BINDINGS_S = 60.0
_register_with_event_loop = transport.Transport.register_with_event_loop


class Channel(TakingChannel):
    """A channel that can be closed without Redis."""

    QoS = QoS

    def __init__(self, *args: Any, **options: Any) -> None:
        self._kept_client: Any = None
        super().__init__(*args, **options)

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
        # Redis reports changes on a connection of protocol 3 only.
        parameters = {**super()._connparams(asynchronous), "retry": Retry(NoBackoff(), 0)}
        return {**parameters, "protocol": 3} if asynchronous else parameters

    def _deliver(self, queue: str, raw: bytes) -> None:
        item: Any = None
        try:
            item = loads(bytes_to_str(raw))
            why = check_item(item, self.codecs)
            if why is None:
                item["properties"]["delivery_tag"] = self.taken[0]
                self.connection._deliver(item, queue)
                return
        except Exception as error:
            if item is not None and not caused_by_message(error):
                raise
            # Only what comes before the consumer raises this: the consumer guards itself.
            why = f"the item is no message ({type(error).__name__})"
        headers, id = headers_and_id(raw)
        item = None if queue in self.without_ack else QueueItem(self.taken[0], self)
        dead_letters.set_aside(why, content=raw, headers=headers, queue=queue, id=id, message=item)

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


class SentinelChannel(Channel, transport.SentinelChannel):
    """The same behind Redis Sentinel."""


class Connection(connection.Connection):
    """Reconnects every three seconds at the slowest; kombu's own pauses grow to half a minute."""

    def ensure_connection(self, *args: Any, **options: Any) -> Any:
        for option, seconds in (("interval_start", 0.5), ("interval_step", 0.5), ("interval_max", 3)):
            options.setdefault(option, seconds)
        return super().ensure_connection(*args, **options)


def _register(self: Any, connection: Any, loop: Any) -> None:
    """Each look would wake a worker that has nothing else to do."""
    _register_with_event_loop(self, connection, loop)
    self.cycle._binding_expiry_tref.cancel()
    self.cycle._binding_expiry_tref = loop.call_repeatedly(_BINDINGS_S, self.cycle.maybe_refresh_binding_expiry)


def install(app: Celery) -> None:
    """For this process: Redis connections made from now on use these channels. Idempotent."""
    transport.Transport.Channel = Channel
    transport.SentinelTransport.Channel = SentinelChannel
    transport.Transport.register_with_event_loop = _register  # type: ignore[method-assign]
    app.amqp.Connection = Connection
