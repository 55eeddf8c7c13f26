"""Threads for Celery's tracers, one for each task in flight. A thread that is free takes the next task."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context
from queue import Empty, SimpleQueue

_KEPT_S = 10.0
"""How long a thread waits for another task before it ends."""


class TracerThreads:
    """Runs each call at once: in the thread that became free last, or in a new one. Thread-safe.

    The threads are daemons, so that a body that never returns does not keep the process.
    """

    def __init__(self) -> None:
        self._free: deque[SimpleQueue[Callable[[], None]]] = deque()
        self._number = 0

    def run(self, call: Callable[[], None]) -> None:
        """``call`` may not raise. It begins with no context variables set."""
        try:
            self._free.pop().put(call)
        except IndexError:
            self._number += 1
            calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
            calls.put(call)
            threading.Thread(target=self._main, args=(calls,), name=f"tracer-{self._number}", daemon=True).start()

    def _main(self, calls: SimpleQueue[Callable[[], None]]) -> None:
        while True:
            try:
                call = calls.get(timeout=_KEPT_S)
            except Empty:
                with contextlib.suppress(ValueError):
                    self._free.remove(calls)
                    return
                continue  # a call is about to arrive
            Context().run(call)
            del call  # it refers to the task's result
            self._free.append(calls)
