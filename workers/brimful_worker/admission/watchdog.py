"""A thread that shuts connections whose lease has ended, even when the event loop is stuck in somebody's code.

It holds a duplicate of each connection's descriptor, so that it can never shut one that was closed and opened anew
for somebody else, and shuts it at the operating system: the provider sees the request's end whatever asyncio does.
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import threading
from collections.abc import Callable

from brimful_worker.admission.clock import steady

_GRACE_S = 0.1
"""The event loop, when it runs, is given this long to end the request itself."""
NAP_S = 1.0
"""The longest wait for a moment on the steady clock: timers stand still while the machine is suspended."""


class Watch:
    """One watched connection. ``deadline`` tells the current end of its lease on the steady clock."""

    def __init__(self, descriptor: int, deadline: Callable[[], float], on_shut: Callable[[], None]) -> None:
        self.deadline = deadline
        self.on_shut = on_shut
        self._duplicate = os.dup(descriptor)

    def close(self) -> None:
        """Idempotent; callers hold the watchdog's lock."""
        duplicate, self._duplicate = self._duplicate, -1
        if duplicate >= 0:
            os.close(duplicate)

    def shut(self) -> None:
        """The connection, at the operating system; then the duplicate."""
        duplicate, self._duplicate = self._duplicate, -1
        if duplicate >= 0:
            # A socket object is made only here: making one asks the system four times what sort of socket it is.
            with socket.socket(fileno=duplicate) as connection, contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class Watchdog:
    """Starts its thread with the first watch; ``stop`` ends it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._watches: set[Watch] = set()
        self._thread: threading.Thread | None = None
        self._target = math.inf
        self._stopped = False

    def add(self, descriptor: int, deadline: Callable[[], float], on_shut: Callable[[], None]) -> Watch:
        """Raises OSError when the descriptor is closed or no more are to be had."""
        watch = Watch(descriptor, deadline, on_shut)
        with self._changed:
            self._watches.add(watch)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="brimful-watchdog", daemon=True)
                self._thread.start()
            elif deadline() < self._target:
                self._changed.notify()
        return watch

    def look(self) -> None:
        """Some deadline has become earlier. (That they become later needs no telling.)"""
        with self._changed:
            self._changed.notify()

    def remove(self, watch: Watch) -> None:
        with self._changed:
            self._watches.discard(watch)
            watch.close()

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()
            for watch in self._watches:
                watch.close()
            self._watches.clear()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        with self._changed:
            while not self._stopped:
                now = steady()
                earliest = math.inf
                for watch in list(self._watches):
                    end = watch.deadline() + _GRACE_S
                    if end <= now:
                        self._shut(watch)
                    else:
                        earliest = min(earliest, end)
                self._target = earliest
                self._wait()

    def _wait(self) -> None:
        """Until told, or the first lease may end. A wait does not count time in which the machine is suspended, hence
        the naps: only the clock is looked at after each."""
        if self._target == math.inf:
            self._changed.wait()
            return
        while (left := self._target - steady()) > 0:
            if self._changed.wait(min(left, NAP_S)):
                return

    def _shut(self, watch: Watch) -> None:
        self._watches.discard(watch)
        watch.on_shut()
        watch.shut()
