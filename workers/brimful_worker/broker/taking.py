"""How a channel takes messages: they are noted as unacknowledged in the step that takes them (``take.lua``).

Where one urgent message waits, others often do: those for which places are free are taken with it. Messages of batch,
whose shards may be large, are taken one at a time.

kombu's BRPOP loses what it pops for a worker that dies, stands still or is cut off before it has noted the delivery.
No script can block, so a worker whose queues are empty waits for Redis to report a change of them (CLIENT TRACKING).

Private parts of kombu 5.7.0:
    kombu.transport.redis.Channel: _brpop_read, _brpop_sent_at, _brpop_start, _flush_brpop_reauth, _in_poll, _q_for_pri,
        _queue_cycle, basic_consume, brpop_timeout
Private parts of redis 8.1.0:
    redis.connection.AbstractConnection: _parser, _sock
"""

# mypy: disallow-untyped-calls=False
from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable
from queue import Empty
from typing import Any

import redis
from kombu.asynchronous import get_event_loop
from kombu.transport import redis as transport
from kombu.utils.uuid import uuid
from redis.exceptions import NoScriptError

from brimful.names import plain_queue
from brimful.state.redis_retry import refused_for_now, reply_text
from brimful_worker.broker.fairness import URGENT, fairness
from brimful_worker.broker.qos import wake_after
from brimful_worker.broker.unacked import unacked
from brimful_worker.lua_script import load_script

log = logging.getLogger(__name__)

_REFUSED_S = 0.5
"""Pause after Redis has refused to give out a task."""
_LOG_AGAIN_S = 5.0
_UNTRACKED_S = 0.1
"""How often empty queues are asked where Redis does not report changes."""
_YIELD_S = (0.0, 0.002, 0.004, 0.008)
"""Seconds from a report to the next question, by the number of reports in a row after which others were faster."""
_CHANGED = object()
"""Read in place of a reply: Redis reports that a queue has changed."""
_TAKEN_AT_ONCE = 32
"""Messages that one command takes at most: what is delivered next waits for the rest."""
_EMPTY_MOST_S = 4.0
"""How long empty queues are not asked, at most, where Redis reports changes."""
_TAKE = load_script("brimful_worker.broker", "take.lua")


class TakingChannel(transport.Channel):
    """A channel that takes and notes messages in one step. Subclasses deliver them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._refused_until = -_LOG_AGAIN_S
        self._polled: Any = False
        self._asked = self._waiting = False
        """Whether the reply to a pop is under way; whether all was empty, and a change is waited for."""
        super().__init__(*args, **options)
        self._left_out: frozenset[str] = frozenset()
        """Queues that were not asked the last time."""
        self._tracked: Any = None
        """The socket on which Redis reports changes."""
        self._script: tuple[str, str] = ("EVAL", _TAKE.text)
        """The command that takes messages, and its first argument; by hash once Redis has the script."""
        self._wait_s: float = self.brpop_timeout
        """How long empty queues are not asked: ever longer, until a message is found."""
        self._wait_until = 0.0
        self._reported = False
        """Whether the pop under way follows a report."""
        self._beaten = 0
        """Reports in a row after which other workers were faster; an index of _YIELD_S."""
        self._tags = ""
        """What the delivery tags of the messages begin with that the pop under way takes."""
        self._lists: list[tuple[str, str]] = []
        """(list, queue) that the pop under way asks."""
        self._empty: dict[str, float] = {}
        """Empty queues of which Redis reports the next change, and until when they need not be asked."""
        self._spared: list[str] = []
        """Those of them that the pop under way does not ask."""
        self.without_ack: set[str] = set()
        """Queues whose messages are not acknowledged."""
        self.taken: tuple[str, int] = ("", 0)
        """Delivery tag and bytes of the message that is being delivered. It is noted as unacknowledged."""
        consume = self._queue_cycle.consume

        def consume_unfilled(n: int) -> list[str]:
            queues = consume(n)
            self._left_out = self._full(queues)
            return [queue for queue in queues if queue not in self._left_out]

        self._queue_cycle.consume = consume_unfilled

    def _full(self, queues: Iterable[str]) -> frozenset[str]:
        full = fairness.full_queues()
        return frozenset(queue for queue in queues if plain_queue(queue) in full)

    def ask_again(self) -> None:
        """Ask at once if a queue that was left out may be asked by now."""
        if self._waiting and self._freed_queues():
            self._stop_waiting()

    def _freed_queues(self) -> frozenset[str]:
        return self._left_out - self._full(self._left_out)

    def basic_consume(self, queue: str, no_ack: bool = False, *args: Any, **options: Any) -> Any:
        (self.without_ack.add if no_ack else self.without_ack.discard)(queue)
        return super().basic_consume(queue, no_ack, *args, **options)

    def _brpop_start(self, timeout: float | None = None) -> None:
        if (fairness.pause_s() or time.monotonic() < self._refused_until) and get_event_loop() is not None:
            return  # other workers go first, or Redis has time to recover
        if not (queues := self._queue_cycle.consume(len(self.active_queues))):
            return
        connection = self.client.connection
        self._track(connection)
        unknown = [queue for queue in queues if time.monotonic() >= self._empty.get(queue, 0.0)]
        if not unknown and not connection.can_read(0):
            self._wait(connection, min(self._empty[queue] for queue in queues))
            return
        # What can be read is the report of a change.
        self._spared = [queue for queue in queues if queue not in unknown] if unknown else []
        queues = unknown or queues
        self._lists = [(self._q_for_pri(queue, step), queue) for step in self.priority_steps for queue in queues]
        keys = [self.unacked_key, self.unacked_index_key, *(name for name, _ in self._lists)]
        notes = ["" if queue in self.without_ack else f',"",{json.dumps(queue)}]' for _, queue in self._lists]
        alone = [int(plain_queue(queue) not in URGENT) for _, queue in self._lists]
        most = max(1, int(min(fairness.urgent_room(), self.qos.room(), _TAKEN_AT_ONCE)))
        self._tags = f"{uuid()}-"
        self._in_poll, self._asked, self._waiting = connection, True, False
        self._brpop_sent_at: Any = time.monotonic()
        now = repr(unacked.server_time())
        connection.send_command(*self._script, len(keys), *keys, most, now, self._tags, *notes, *alone)

    def _track(self, connection: Any) -> None:
        """Let Redis report, on this connection, the next change of each key that was read on it."""
        if self._tracked is connection._sock is not None:
            return
        connection.send_command("CLIENT", "TRACKING", "ON", "NOLOOP")
        self._tracked, self._wait_s = connection._sock, self.brpop_timeout
        self._empty.clear()
        connection._parser.set_invalidation_push_handler(self._changed)
        try:
            connection.read_response()
        except self.ResponseError as error:
            log.warning("Redis does not report changes (%s): idle workers ask ten times a second", reply_text(error))
            self._wait_s = _UNTRACKED_S

    def _changed(self, _: Any) -> Any:
        self._empty.clear()
        return _CHANGED

    def _wait(self, connection: Any, until: float) -> None:
        """Ask nothing until then, or until Redis reports a change."""
        self._in_poll, self._waiting, self._wait_until = connection, True, until
        wake_after(max(0.0, until - time.monotonic()))

    @property
    def _in_poll(self) -> Any:
        """The connection on which a reply or a report is awaited; kombu asks the queues when there is none.

        Empty queues are asked again after one to four seconds, should the report of a change be missed.
        """
        if self._waiting and time.monotonic() >= self._wait_until:
            self._stop_waiting()
        return self._polled

    @_in_poll.setter
    def _in_poll(self, connection: Any) -> None:
        self._polled = connection

    def _stop_waiting(self) -> None:
        """The next poll asks again."""
        if self._waiting:
            self._waiting = self._in_poll = False
            self._flush_brpop_reauth()

    def _brpop_read(self, **options: Any) -> Any:
        connection = self.client.connection
        try:
            reply = connection.read_response(push_request=True)
            while reply is _CHANGED and self._asked and connection.can_read(0):
                reply = connection.read_response(push_request=True)
            changed = not reply and connection.can_read(0)
        except self.connection_errors:
            connection.disconnect()  # the next poll connects again
            self._answered()
            raise
        except NoScriptError:  # SCRIPT FLUSH, a restart or a failover
            self._script = ("EVAL", _TAKE.text)
            self._answered()
            raise Empty from None
        except redis.ResponseError as error:
            self._answered()
            if not refused_for_now(error):
                raise
            now = time.monotonic()
            if now > self._refused_until + _LOG_AGAIN_S:
                log.warning("cannot take tasks from Redis: %s; retrying", reply_text(error))
            self._refused_until = now + _REFUSED_S
            wake_after(_REFUSED_S)
            raise Empty from None
        if reply is _CHANGED:
            self._reported = True
            self._wait_until = time.monotonic() + (pause := _YIELD_S[self._beaten])
            wake_after(pause)
            raise Empty
        self._script = ("EVALSHA", _TAKE.sha)
        more = bool(reply) and reply[-1][0] == 0
        if any(plain_queue(queue) in URGENT for _, queue in self._lists):
            fairness.backlog = more
        if not reply:
            self._beaten = min(self._beaten + self._reported, len(_YIELD_S) - 1)
            self._asked = self._reported = False
            until = time.monotonic() + self._wait_s
            if changed or self._freed_queues() or not self._empty.keys() >= set(self._spared):
                self._in_poll = False  # one that was not asked may hold a message by now
            else:
                self._wait(connection, until)
            if not changed and self._wait_s != _UNTRACKED_S:
                self._empty |= dict.fromkeys((queue for _, queue in self._lists), until)
                self._wait_s = max(self._wait_s, min(2 * self._wait_s, _EMPTY_MOST_S))
            raise Empty
        try:
            self._wait_s = min(self._wait_s, self.brpop_timeout)
            self._beaten, self._reported = 0, False
            lists, tags = self._lists, self._tags
            for number, (place, raw) in enumerate(reply[:-1] if more else reply, 1):
                queue = lists[place - 1][1]
                self._queue_cycle.rotate(queue)
                self.taken = (f"{tags}{number}", len(raw))
                self._deliver(queue, raw)
        finally:
            self._answered()
        return True

    def _answered(self) -> None:
        self._in_poll = self._asked = self._waiting = False
        self._flush_brpop_reauth()

    def _deliver(self, queue: str, raw: bytes) -> None:
        raise NotImplementedError

    def _read_pending(self) -> None:
        """Take the reply of a pop under way; without consumers kombu requeues its message."""
        self._stop_waiting()
        if not self._in_poll:
            return
        try:
            while self._asked:
                self._brpop_read()
        except (Empty, *self.connection_errors):
            self._in_poll = False
