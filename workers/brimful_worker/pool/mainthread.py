"""A queue of calls for the worker's main thread, made in order.

Private parts of kombu 5.7.0:
    kombu.asynchronous.hub.Hub: _pop_ready, call_soon, fire_timers
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

log = logging.getLogger(__name__)


class MainThreadQueue:
    """A FIFO that Celery's hub drains, or the pool when the hub no longer loops.

    The hub's own queue is a set: calls put there one by one would lose their order.
    """

    def __init__(self) -> None:
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._hub: Any = None
        self.arrived = threading.Event()
        """Set when a call came in since the last drain."""

    def attach(self, hub: Any) -> None:
        """From now on this hub drains the queue."""
        self._hub = hub
        hub.call_soon(self.drain)

    def put(self, call: Callable[..., None], *args: Any) -> None:
        """From any thread."""
        self._calls.append((call, args))
        self.arrived.set()
        if self._hub is not None:
            self._hub.call_soon(self.drain)

    def drain(self) -> None:
        """A call that fails is logged, and the next one made. Then what the calls left to the hub is done.

        The hub would sleep before it came to that, until something else woke it.
        """
        self._call_all()
        for item in self._ready_items():
            item()

    def drain_all(self) -> None:
        """The same, where the hub no longer loops: acknowledgements and buffered events that fail are logged."""
        self._call_all()
        for item in self._ready_items():
            try:
                item()
            except Exception as error:
                log.warning("a last acknowledgement or event failed: %r", error)

    def _call_all(self) -> None:
        self.arrived.clear()
        while self._calls:
            call, args = self._calls.popleft()
            try:
                call(*args)
            except Exception:
                log.exception("a pool callback failed")
            except BaseException:  # a shutdown: the rest must not be forgotten
                if self._calls and self._hub is not None:
                    self._hub.call_soon(self.drain)
                raise

    def _ready_items(self) -> Iterator[Callable[[], Any]]:
        for _ in range(100 if self._hub is not None else 0):  # what is ready may make more ready
            ready = self._hub._pop_ready()
            if not ready:
                return
            yield from ready

    def fire_timers(self) -> None:
        """While the hub no longer loops: heartbeats go on, so that the worker is not taken for dead."""
        if self._hub is not None:
            self._hub.fire_timers()
