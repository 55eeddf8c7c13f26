"""kombu's record of unacknowledged messages, changed for outages of Redis; requeues the messages of dead workers.

:meth:`QoS.restore_visible`, which every worker calls every few seconds, brings a dead worker's tasks back.

What is changed, each found by experiment:

- A lost connection requeues only messages that do not run here. Running tasks go on and are acknowledged later.
- Acknowledgements of tasks that end together are sent together.
- An acknowledgement that cannot be sent is deferred; :mod:`brimful_worker.broker.renewal` sends it later.
- Renewal times are the server's. Abandoned messages are looked for only while Redis is stable. A message whose
  task the pool had begun counts its worker's death; the admission counts them for requests to the provider.
- An unacknowledged message that cannot be put back is set aside instead of ending every sweep.

Private parts of kombu 5.7.0:
    kombu.transport.redis.Channel: QoS, _get_message_priority, _lookup, _q_for_pri, active_queues, conn_or_acquire
    kombu.transport.redis.QoS: _delivered, _flush, ack, append, pipe_or_acquire, reject, restore_by_tag,
        restore_unacked, restore_unacked_once, restore_visible
    kombu.transport.redis: Mutex, MutexHeld
    kombu.transport.virtual.base.Message: _raw
    kombu.transport.virtual.base.QoS: ack, append
"""

# mypy: disallow-untyped-calls=False
from __future__ import annotations

import contextlib
import logging
import math
import re
from importlib import resources
from typing import Any

import redis
from kombu.asynchronous import get_event_loop
from kombu.exceptions import InconsistencyError
from kombu.transport import redis as transport
from kombu.transport import virtual
from kombu.transport.redis import Mutex, MutexHeld
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads

from brimful.names import plain_queue
from brimful.state.redis_retry import reply_text
from brimful_worker.broker.dead_letters import dead_letters
from brimful_worker.broker.fairness import fairness
from brimful_worker.broker.message_check import headers_and_id
from brimful_worker.broker.unacked import unacked

log = logging.getLogger(__name__)

_TIMER_S = 0.001
"""Added to a pause, so that its timer does not fire just before the pause has ended."""

_ACKS_S = 0.01
"""How long the acknowledgement of a message that has left its place waits for others."""

LOST_HEADER = "brimful_lost"
"""Message header: how many workers have died while they ran this task."""

_NOTE = re.compile(rb'\[(?P<item>.*),"","(?P<queue>[^"]*)"\]', re.DOTALL)
"""What ``take.lua`` notes, where the item is no JSON."""
_REQUEUE = resources.files("brimful_worker.broker").joinpath("requeue.lua").read_text("utf-8")


class QoS(transport.QoS):
    """The messages that this channel delivered and that are not acknowledged."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._acks: list[str] = []
        self._begun: set[str] = set()
        self._placeless: set[str] = set()
        """Messages that have left their places and are not acknowledged yet."""
        self.begun_key = begun_key(self.unacked_key)
        self._settling = self._gathering = False

    def append(self, message: Any, delivery_tag: str) -> None:
        tag, size = self.channel.taken
        if delivery_tag != tag:
            super().append(message, delivery_tag)
            return
        if pause := fairness.received(plain_queue(message.delivery_info["routing_key"]), size):
            wake_after(pause)
        virtual.QoS.append(self, message, delivery_tag)

    def note_begun(self, delivery_tag: str) -> None:
        """The pool begins the task: if this worker dies before it has ended, the task may be why."""
        self._begun.add(delivery_tag)
        try:
            with self.channel.conn_or_acquire() as client:
                client.hset(self.begun_key, delivery_tag, 1)
        except self._redis_errors as error:
            log.debug("cannot note that a task begins: %s", type(error).__name__)

    def can_consume(self) -> bool:
        return self.room() > 0

    def room(self) -> float:
        """How many more messages this channel may hold."""
        count = self.prefetch_count
        held = len(self._delivered) - len(self._dirty) - len(self._placeless)
        return count + fairness.prefetch_reserve - held if count else math.inf

    def leave_place(self, delivery_tag: str) -> None:
        """The message's task has ended but for its result: another message may be taken in its place."""
        if delivery_tag in self._delivered and delivery_tag not in self._dirty:
            self._placeless.add(delivery_tag)
            unacked.leave_place(delivery_tag)
            self.channel.ask_again()

    def ack(self, delivery_tag: str) -> None:
        may_wait = delivery_tag in self._placeless
        self._placeless.discard(delivery_tag)
        unacked.acknowledged(delivery_tag)
        self._acks.append(delivery_tag)
        virtual.QoS.ack(self, delivery_tag)
        self._freed(may_wait=may_wait)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        if not requeue:
            self.ack(delivery_tag)
            return
        self._placeless.discard(delivery_tag)
        try:
            super().reject(delivery_tag, requeue=True)
            unacked.remove(delivery_tag)
        except self._redis_errors as error:
            log.warning("cannot requeue a task (%s); another worker does it", type(error).__name__)
            virtual.QoS.ack(self, delivery_tag)
        self._freed()

    def _freed(self, *, may_wait: bool = False) -> None:
        if (hub := get_event_loop()) is None:
            self.settle()
        elif may_wait and not self.channel.closed:
            if not self._gathering:
                self._gathering = True
                hub.call_later(_ACKS_S, self.settle)
        elif not self._settling:
            self._settling = True
            hub.call_soon(self.settle)

    def settle(self) -> None:
        """Send the acknowledgements that came in since the last time, and take messages for the freed places."""
        self._settling = self._gathering = False
        if self._send_acks():
            self.channel.ask_again()

    def _send_acks(self) -> bool:
        """Returns False if Redis is away; the acknowledgements are deferred then."""
        tags, self._acks = self._acks, []
        if tags:
            try:
                with self.channel.conn_or_acquire() as client, client.pipeline(transaction=False) as pipe:
                    pipe.zrem(self.unacked_index_key, *tags).hdel(self.unacked_key, *tags)
                    if begun := self._begun.intersection(tags):
                        pipe.hdel(self.begun_key, *begun)
                    pipe.execute()
            except self._redis_errors as error:
                for tag in tags:
                    unacked.defer_ack(tag)
                log.warning("cannot acknowledge a task (%s); done when Redis is back", type(error).__name__)
                return False
            finally:
                self._begun.difference_update(tags)
        return True

    def restore_unacked_once(self, stderr: Any = None) -> None:
        self._send_acks()
        for tag in unacked.kept():
            self._delivered.pop(tag, None)
        super().restore_unacked_once(stderr)

    def restore_unacked(self, client: Any = None) -> None:
        """Requeue what neither runs here nor has a deferred acknowledgement."""
        self._send_acks()
        self._flush()
        kept = unacked.kept()
        tags = [tag for tag in self._delivered if tag not in kept]
        for tag in tags:
            unacked.remove(tag)
        try:
            for tag in tags:
                self.restore_by_tag(tag, client)
        except self._redis_errors as error:
            # They are renewed no longer, so another worker requeues them soon.
            log.warning("cannot requeue unstarted tasks (%s)", type(error).__name__)
        self._delivered.clear()
        self._placeless.clear()

    def restore_by_tag(self, tag: str, client: Any = None, leftmost: bool = False) -> None:
        with self.channel.conn_or_acquire(client) as connection:
            self._requeue(connection, tag, "tail" if leftmost else "head", None)

    def restore_visible(self, start: int = 0, num: int = 10, interval: int = 10) -> None:
        """Requeue the tasks of dead workers. Every worker does this every few seconds."""
        if not unacked.stable():
            return  # after an outage the others must renew first, or their running tasks would count as abandoned
        abandoned = unacked.server_time() - self.visibility_timeout
        try:
            with self.channel.conn_or_acquire() as client:
                if not self._abandoned(client, abandoned):
                    return  # as nearly always: the lock alone costs three more commands
                with Mutex(client, self.unacked_mutex_key, self.unacked_mutex_expire):
                    for tag in self._abandoned(client, abandoned):
                        if self._requeue(client, tag, "head", abandoned):
                            log.warning("requeued a task whose worker died")
        except MutexHeld:
            pass
        except redis.ResponseError as error:
            log.warning("cannot look for the tasks of dead workers: %s", reply_text(error))

    def _abandoned(self, client: Any, before: float) -> list[Any]:
        """Tags of the messages, but those kept here, that were last renewed before this time of the server."""
        kept = unacked.kept()
        tags = client.zrange(self.unacked_index_key, "-inf", before, byscore=True)
        return [tag for tag in tags if bytes_to_str(tag) not in kept]

    @property
    def _redis_errors(self) -> tuple[type[Exception], ...]:
        """Redis is away, or refuses a command."""
        return (*self.channel.connection_errors, redis.ResponseError)

    def _requeue(self, client: Any, tag: Any, place: str, abandoned: float | None) -> bool:
        read = client.hget(self.unacked_key, tag)
        if read is None:
            if abandoned is not None:
                client.zrem(self.unacked_index_key, tag)
            return False
        try:
            message, exchange, routing_key = loads(bytes_to_str(read))
            headers = message["headers"] = message.get("headers") or {}
            headers["redelivered"] = message["properties"]["delivery_info"]["redelivered"] = True
            if abandoned is not None and client.hexists(self.begun_key, tag):
                headers[LOST_HEADER] = lost_count(headers) + 1
            priority = self.channel._get_message_priority(message, reverse=False)
            queues = self._queues(exchange, routing_key)
        except redis.RedisError:
            raise
        except Exception as error:
            why = f"it cannot be put back into its queue ({type(error).__name__})"
            found = _NOTE.fullmatch(read)
            item, queue = (found["item"], bytes_to_str(found["queue"])) if found else (read, "unacked")
            headers, id = headers_and_id(item)
            dead_letters.set_aside(why, content=item, headers=headers, queue=queue, id=id)
            client.hdel(self.unacked_key, tag)
            client.zrem(self.unacked_index_key, tag)
            return False
        done = False
        for queue in queues:
            key = self.channel._q_for_pri(queue, priority)
            keys = [self.unacked_key, self.unacked_index_key, key]
            latest = "" if abandoned is None else repr(abandoned)
            done |= bool(client.eval(_REQUEUE, len(keys), *keys, tag, read, dumps(message), place, latest))
        if done and (abandoned is not None or bytes_to_str(tag) in self._begun):
            client.hdel(self.begun_key, tag)
            self._begun.discard(bytes_to_str(tag))
        return done

    def _queues(self, exchange: str, routing_key: str) -> list[str]:
        """Raises KeyError if neither the exchange nor this channel knows one."""
        queues: list[str] = []
        with contextlib.suppress(InconsistencyError):  # an exchange whose bindings are gone
            queues = self.channel._lookup(exchange, routing_key)
        if not queues and routing_key in self.channel.active_queues:
            queues = [routing_key]
        if not queues:
            raise KeyError(exchange)
        return queues

    def leave_to_other_thread(self, delivery_tag: str) -> None:
        """Another thread acknowledges this message. It no longer counts here, nor is it requeued by this channel."""
        self._placeless.discard(delivery_tag)
        if delivery_tag in self._delivered:
            virtual.QoS.ack(self, delivery_tag)


def begun_key(unacked_key: str) -> str:
    """HASH: delivery tag → 1, of the unacknowledged messages whose task the pool has begun."""
    return f"{unacked_key}_begun"


def lost_count(headers: Any) -> int:
    """How many workers have died while they ran the task of these message headers."""
    lost = headers.get(LOST_HEADER)
    return lost if type(lost) is int and lost > 0 else 0


def wake_after(seconds: float) -> None:
    """Let the hub poll its channels then, as it does after each wake-up."""
    # It computes how long to sleep before it calls them, so a timer that they set then would come too late.
    if (hub := get_event_loop()) is not None:
        hub.call_later(seconds + _TIMER_S, lambda: None)
