"""A thread that shuts connections whose lease has ended, even when the event loop is blocked.

It shuts them in the operating system, so that the provider sees the request's end whatever asyncio does. A watched
descriptor may have been closed meanwhile, and reused for another connection. So the thread looks at a duplicate of it,
which nobody else can replace, and shuts that only if it still is the socket that was to be watched.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import socket
import threading
from collections.abc import Callable
from typing import Protocol

from brimful_worker.liveness.boot_time import boot_time

log = logging.getLogger(__name__)

_GRACE_S = 0.1
"""The event loop, if it runs, gets this long to end the request itself."""
NAP_S = 1.0
"""The longest wait for a time on ``boot_time()``: timers stand still while the machine is suspended."""


class Watched(Protocol):
    """The holder of a slot; used on the watchdog's thread, and on those that shut its connection."""

    deadline: float
    """When its lease ends, on ``boot_time()``; may change at any time."""

    def shut(self) -> None:
        """Called just before its connection is shut."""


class Watch:
    """One watched connection."""

    __slots__ = ("_descriptor", "_inode", "watched")

    def __init__(self, watched: Watched, descriptor: int) -> None:
        """Raises OSError if the descriptor is closed."""
        self.watched = watched
        self._descriptor = descriptor
        self._inode = os.fstat(descriptor).st_ino

    def shut(self, spare: int, null: int) -> None:
        """``spare``: a descriptor of the watchdog's own for the duplicate, as there may be no free one left."""
        try:
            os.dup2(self._descriptor, spare, inheritable=False)
            if os.fstat(spare).st_ino != self._inode:
                return
            connection = socket.socket(fileno=spare)
            try:
                connection.shutdown(socket.SHUT_RDWR)
            finally:
                connection.detach()
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.ENOTCONN):  # closed already, by either side
                log.warning("admission: cannot shut a connection whose lease has ended: %s", error)
        finally:
            os.dup2(null, spare, inheritable=False)


class Schedule:
    """When a thread has to look at its watches, of which there may be thousands. Pure. Times are in seconds."""

    def __init__(self) -> None:
        self.until = math.inf
        """How long the thread waits: a nap at most while something is watched, so that few watches have to wake it."""
        self._first = math.inf
        """No watch ends before this."""
        self._added = False
        """Since the wait before this one."""

    def added(self, deadline: float) -> bool:
        """Returns whether a thread that waits has to be woken for this watch."""
        self._added = True
        self._first = min(self._first, deadline + _GRACE_S)
        return deadline < self.until

    def changed(self) -> None:
        """A deadline became earlier."""
        self._first = -math.inf

    def due(self, now: float) -> bool:
        """Whether a watch may have ended, so that all have to be looked at."""
        return self._first <= now

    def looked(self, first: float) -> None:
        """All were looked at: none ends before ``first``."""
        self._first = first

    def wait(self, now: float, watching: bool) -> None:
        """The thread waits from now on. ``watching``: it has any watches."""
        busy, self._added = self._added or watching, False
        self.until = min(self._first, now + NAP_S if busy else math.inf)


class Watchdog:
    """Starts its thread with the first watch. Its methods may be called from any thread."""

    def __init__(self, clock: Callable[[], float] = boot_time) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._watches: set[Watch] = set()
        self._schedule = Schedule()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._null = self._spare = -1

    def add(self, watched: Watched, descriptor: int) -> Watch:
        """Raises OSError if the descriptor is closed, or none is left for the thread's own use."""
        watch = Watch(watched, descriptor)
        with self._lock:
            if self._thread is None:
                self._null = os.open(os.devnull, os.O_RDONLY)
                try:
                    self._spare = os.dup(self._null)
                except OSError:
                    os.close(self._null)
                    raise
                self._thread = threading.Thread(target=self._run, name="brimful-watchdog", daemon=True)
                self._thread.start()
            self._watches.add(watch)
            if self._schedule.added(watched.deadline):
                self._wake()
        return watch

    def look(self) -> None:
        """Call this when a deadline became earlier. (The thread sees by itself when one became later.)"""
        with self._changed:
            self._schedule.changed()
            self._wake()

    def remove(self, watch: Watch) -> None:
        """Its connection is not touched any more when this returns."""
        with self._lock:
            self._watches.discard(watch)

    def shut(self, watch: Watch) -> None:
        """Shut its connection now, unless it is not watched any more."""
        with self._changed:
            if watch in self._watches:
                self._shut(watch)

    def stop(self) -> None:
        """Shut what is still watched, and end the thread."""
        with self._changed:
            self._stopped = True
            for watch in list(self._watches):
                self._shut(watch)
            self._wake()
        if self._thread is not None:
            self._thread.join()
            os.close(self._spare)
            os.close(self._null)

    def _wake(self) -> None:
        self._schedule.until = -math.inf
        self._changed.notify()

    def _run(self) -> None:
        with self._changed:
            while not self._stopped:
                now = self._clock()
                if self._schedule.due(now):
                    self._schedule.looked(self._shut_ended(now))
                self._schedule.wait(now, bool(self._watches))
                while (left := self._schedule.until - self._clock()) > 0:
                    self._changed.wait(None if left == math.inf else min(left, NAP_S))

    def _shut_ended(self, now: float) -> float:
        """Returns when the first of the remaining leases ends."""
        first = math.inf
        for watch in list(self._watches):
            end = watch.watched.deadline + _GRACE_S
            if end <= now:
                self._shut(watch)
            else:
                first = min(first, end)
        return first

    def _shut(self, watch: Watch) -> None:
        self._watches.discard(watch)
        watch.watched.shut()
        watch.shut(self._spare, self._null)
