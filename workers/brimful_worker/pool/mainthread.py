"""A queue of calls for the worker's main thread, made in order.

Private parts of kombu 5.7.0:
    kombu.asynchronous.hub.Hub: _pop_ready, call_soon, fire_timers
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
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
        """A call that fails is logged, and the next one made."""
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

    def drain_all(self) -> None:
        """Also what the hub itself has ready: acknowledgements and buffered events."""
        self.drain()
        for _ in range(100 if self._hub is not None else 0):  # what is ready may make more ready
            ready = self._hub._pop_ready()
            if not ready:
                return
            for item in ready:
                try:
                    item()
                except Exception as error:
                    log.warning("a last acknowledgement or event failed: %r", error)

    def fire_timers(self) -> None:
        """While the hub no longer loops: heartbeats go on, so that the worker is not taken for dead."""
        if self._hub is not None:
            self._hub.fire_timers()
