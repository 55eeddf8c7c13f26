"""Completes what Flower knows of tasks whose last events it missed. Runs in Flower's own process.

Redis hands events to whoever listens at that moment: what workers send while Flower reconnects, or is down, is lost,
and Flower would show those tasks as STARTED for ever. So tasks that have not ended are looked up in turn: their
results in Redis, of which only the first and last bytes are read, and, for tasks without a stored result, in the
workers' memory of what succeeded.

Patched, as read in Flower 2.2.0: ``flower.events.Events.start`` and ``stop``. Also used: ``EventsState._index_task``,
``celery.events.state.Task.event`` (celery 5.7.0).
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from celery import Celery, states
from kombu.exceptions import OperationalError

from brimful.state.redis_retry import REDIS_ERRORS, reply_text
from brimful_worker.broker.worker_state import ENDED

log = logging.getLogger(__name__)

_ROUND_S = 2.0
_AT_ONCE = 500
"""Tasks looked up in a round. Flower keeps 10,000 at most, so all are looked up within 40 s, at little cost."""
_ASK_S = 10.0
"""Seconds between two questions to the workers."""
_REPLY_S = 1.0
_HEAD, _TAIL = 2048, 512
"""Bytes of a stored result that are read: its state is at the beginning, its time at the end."""
_STATE = re.compile(rb'\{"status": ?"([A-Z]+)", ?"result": ?')
_DONE = re.compile(rb'"date_done": ?"([^"]+)"')
_ENDS = {states.SUCCESS: "succeeded", states.FAILURE: "failed", states.REVOKED: "revoked"}
"""State → the event's name in celery.events."""


@dataclass(frozen=True, slots=True)
class End:
    state: str
    at: float
    """Unix time."""
    exception: str | None = None


def install() -> None:
    """Patch this process's Flower. Idempotent."""
    from flower.events import Events
    from tornado.ioloop import PeriodicCallback

    if hasattr(Events, "brimful_reconciles"):
        return
    start, stop = Events.start, Events.stop

    def started(self: Any) -> None:
        start(self)
        reconciler = Reconciler(self.capp)

        async def look() -> None:
            if wanted := reconciler.next_tasks(self.state.tasks.data):
                found = await self.io_loop.run_in_executor(None, reconciler.ends, wanted)
                reconciler.apply(self.state, found)

        self.brimful_reconciles = PeriodicCallback(look, _ROUND_S * 1000)
        self.brimful_reconciles.start()

    def stopped(self: Any) -> None:
        if self.brimful_reconciles is not None:
            self.brimful_reconciles.stop()
        stop(self)

    Events.start, Events.stop, Events.brimful_reconciles = started, stopped, None


class Reconciler:
    """Looks for the ends of an app's tasks. ``next_tasks`` and ``apply`` are called on Flower's loop."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._turn: deque[str] = deque()
        self._asked_at = float("-inf")
        self._away = False

    def next_tasks(self, tasks: Mapping[str, Any]) -> dict[str, str]:
        """The next of Flower's tasks that it has not seen end, and their states. All have their turn."""
        if not self._turn:
            self._turn.extend(id for id, task in tasks.items() if task.state not in states.READY_STATES)
        turn = [self._turn.popleft() for _ in range(min(_AT_ONCE, len(self._turn)))]
        wanted = {id: tasks[id].state for id in turn if id in tasks}
        return {id: state for id, state in wanted.items() if state not in states.READY_STATES}

    def ends(self, wanted: dict[str, str]) -> dict[str, End]:
        """Those of the tasks that have ended. On a thread of its own, since it waits for Redis; never raises."""
        found: dict[str, End] = {}
        try:
            unstored = self._read_results(wanted, found)
            # A task that was only enqueued is in a queue: no worker knows it.
            unknown = [id for id in unstored if wanted[id] != states.PENDING]
            if unknown and time.monotonic() - self._asked_at >= _ASK_S:
                self._asked_at = time.monotonic()
                self._ask_workers(unknown, found)
            self._away = False
        except (*REDIS_ERRORS, OperationalError) as error:
            if not self._away:
                log.warning("cannot look up tasks that Flower has missed: %s; retrying", reply_text(error))
            self._away = True
        return found

    def apply(self, state: Any, found: dict[str, End]) -> None:
        """Bring Flower's tasks to their ends. ``state`` is Flower's EventsState."""
        for id, end in found.items():
            task = state.tasks.data.get(id)
            if task is None or task.state in states.READY_STATES:
                continue  # forgotten, or the event came meanwhile
            fields = {} if end.exception is None else {"exception": end.exception}
            # Not state.event(): that would count an event, and take the worker for alive.
            task.event(_ENDS[end.state], end.at, None, fields)
            state._index_task(task, None)

    def _read_results(self, ids: Iterable[str], found: dict[str, End]) -> list[str]:
        """Adds to ``found``; returns the tasks that have no stored result."""
        backend = self._app.backend
        if not hasattr(backend, "get_key_for_task") or not hasattr(backend, "client"):  # results are elsewhere, or off
            return list(ids)
        unstored = []
        with backend.client.pipeline(transaction=False) as pipe:
            asked = list(ids)
            for id in asked:
                key = backend.get_key_for_task(id)
                pipe.getrange(key, 0, _HEAD - 1)
                pipe.getrange(key, -_TAIL, -1)
            replies = pipe.execute()
        for id, head, tail in zip(asked, replies[::2], replies[1::2], strict=True):
            if not head:
                unstored.append(id)
            elif (end := read_end(_bytes(head), _bytes(tail))) is not None:
                found[id] = end
        return unstored

    def _ask_workers(self, ids: list[str], found: dict[str, End]) -> None:
        replies = self._app.control.broadcast(ENDED, arguments={"ids": ids}, reply=True, timeout=_REPLY_S)
        wanted, now = set(ids), time.time()
        for worker in replies or ():
            for reply in worker.values():  # an older worker's names an error
                found.update((id, End(states.SUCCESS, now)) for id in reply.get("succeeded") or () if id in wanted)


def read_end(head: bytes, tail: bytes) -> End | None:
    """What the first and last bytes of a stored result say; None for a task that has not ended."""
    match = _STATE.match(head)
    state = match[1].decode() if match else ""
    if match is None or state not in _ENDS:
        return None
    at, exception = time.time(), None
    for done in _DONE.findall(tail)[-1:]:
        with contextlib.suppress(ValueError):
            at = datetime.fromisoformat(done.decode()).timestamp()
    if state == states.FAILURE:
        exception = "(see the result)"
        try:
            result, _ = json.JSONDecoder().raw_decode(head[match.end() :].decode(errors="replace"))
            said = result["exc_message"]
            exception = f"{result['exc_type']}({', '.join(map(repr, said if isinstance(said, list) else [said]))})"
        except (ValueError, KeyError, TypeError):
            pass
    return End(state, at, exception)


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else value
