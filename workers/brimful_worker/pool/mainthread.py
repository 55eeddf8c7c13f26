"""What other threads want done on the worker's main thread: in order, one after the other."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)


class MainThread:
    """A FIFO drained by one callback of Celery's hub, or by hand when the hub no longer loops.

    The hub's own queue is a set: callbacks put there one by one would lose their order.
    """

    def __init__(self) -> None:
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._hub: Any = None
        self.arrived = threading.Event()
        """Set when a call came in; whoever drains by hand waits for it."""

    def attach(self, hub: Any) -> None:
        """From now on this hub drains it."""
        self._hub = hub
        hub.call_soon(self.drain)

    def put(self, call: Callable[..., None], *args: Any) -> None:
        self._calls.append((call, args))
        self.arrived.set()
        if self._hub is not None:
            self._hub.call_soon(self.drain)

    def drain(self) -> None:
        """Only on the main thread. A call that fails is logged, and the next one made."""
        self.arrived.clear()
        while True:
            try:
                call, args = self._calls.popleft()
            except IndexError:
                return
            try:
                call(*args)
            except Exception:
                log.exception("a pool callback failed")
            except BaseException:  # a shutdown: the rest must not be forgotten
                if self._calls and self._hub is not None:
                    self._hub.call_soon(self.drain)
                raise

    def drain_all(self) -> None:
        """Also what the hub has ready itself: acknowledgements and buffered events."""
        self.drain()
        if self._hub is None:
            return
        for _ in range(100):  # what is ready may make more ready
            ready = self._hub._pop_ready()
            if not ready:
                return
            for item in ready:
                try:
                    item()
                except Exception as error:
                    log.warning("a last acknowledgement or event failed: %r", error)

    def fire_timers(self) -> None:
        """While the hub no longer loops: heartbeats and the like go on, so that nobody takes the worker for dead."""
        if self._hub is not None:
            try:
                self._hub.fire_timers()
            except Exception as error:
                log.warning("a timer failed while stopping: %r", error)
