"""A thread that shuts connections whose lease has ended, even when the event loop is stuck in somebody's code.

It shuts a connection at the operating system: the provider sees the request's end whatever asyncio does. A descriptor
may have been closed meanwhile, and opened anew for somebody else: it is looked at through a duplicate, which nobody can
exchange, and shut only where it still is the socket that was to be watched.
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
"""The event loop, when it runs, is given this long to end the request itself."""
NAP_S = 1.0
"""The longest wait for a moment on the steady clock: timers stand still while the machine is suspended."""


class Watched(Protocol):
    """Who holds a slot by a connection. Both are used on the watchdog's thread."""

    @property
    def deadline(self) -> float:
        """The current end of its lease, on the steady clock."""

    def shut(self) -> None:
        """Its connection is shut in a moment."""


class Watch:
    """One watched connection."""

    __slots__ = ("_descriptor", "_inode", "watched")

    def __init__(self, watched: Watched, descriptor: int) -> None:
        """Raises OSError when the descriptor is closed."""
        self.watched = watched
        self._descriptor = descriptor
        self._inode = os.fstat(descriptor).st_ino

    def shut(self, spare: int, null: int) -> None:
        """``spare`` is a descriptor of ours to look through; it needs no new one, of which there may be none left."""
        try:
            os.dup2(self._descriptor, spare, inheritable=False)
            if os.fstat(spare).st_ino != self._inode:
                return
            # A socket object is made only here: making one asks the system four times what sort of socket it is.
            connection = socket.socket(fileno=spare)
            try:
                connection.shutdown(socket.SHUT_RDWR)
            finally:
                connection.detach()
        except OSError as error:
            if error.errno not in (errno.EBADF, errno.ENOTCONN):  # closed already, by either side
                log.warning("admission: a connection whose lease has ended was not shut: %s", error)
        finally:
            os.dup2(null, spare, inheritable=False)


class Watchdog:
    """Starts its thread with the first watch; ``stop`` ends it."""

    def __init__(self, first_end: Callable[[], float] = lambda: -math.inf) -> None:
        """``first_end`` tells, on the watchdog's thread and at little cost, a time before which none of the watched
        leases ends: until then the thousands of them need not be looked at one by one."""
        self._first_end = first_end
        self._changed = threading.Condition()
        self._watches: set[Watch] = set()
        self._thread: threading.Thread | None = None
        self._target = math.inf
        self._stopped = False
        self._null = self._spare = -1

    def add(self, watched: Watched, descriptor: int) -> Watch:
        """Raises OSError when the descriptor is closed, or none is left for the thread's own use."""
        watch = Watch(watched, descriptor)
        with self._changed:
            if self._thread is None:
                self._null, self._spare = _two_descriptors()
            self._watches.add(watch)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="brimful-watchdog", daemon=True)
                self._thread.start()
            elif watched.deadline < self._target:
                self._target = -math.inf  # it is told once
                self._changed.notify()
        return watch

    def look(self) -> None:
        """Some deadline has become earlier. (That they become later needs no telling.)"""
        with self._changed:
            self._target = -math.inf  # also where it has just woken of itself
            self._changed.notify()

    def remove(self, watch: Watch) -> None:
        """Its connection is not touched any more when this returns."""
        with self._changed:
            self._watches.discard(watch)

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()
            self._watches.clear()
        if self._thread is not None:
            self._thread.join()
            os.close(self._spare)
            os.close(self._null)

    def _run(self) -> None:
        with self._changed:
            while not self._stopped:
                now = boot_time()
                first = self._first_end() + _GRACE_S if self._watches else math.inf
                self._target = first if first > now else self._shut_ended(now)
                self._wait()

    def _wait(self) -> None:
        """Until told, or the first lease may end. A wait does not count time in which the machine is suspended, hence
        the naps: only the clock is looked at after each."""
        if self._target == math.inf:
            self._changed.wait()
            return
        while (left := self._target - boot_time()) > 0:
            if self._changed.wait(min(left, NAP_S)):
                return

    def _shut_ended(self, now: float) -> float:
        """Returns when the first of those that are left ends."""
        first = math.inf
        for watch in list(self._watches):
            end = watch.watched.deadline + _GRACE_S
            if end <= now:
                self._watches.discard(watch)
                watch.watched.shut()
                watch.shut(self._spare, self._null)
            else:
                first = min(first, end)
        return first


def _two_descriptors() -> tuple[int, int]:
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        return null, os.dup(null)
    except OSError:
        os.close(null)
        raise
