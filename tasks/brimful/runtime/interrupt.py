"""SIGINT and SIGTERM before a command has begun and after it has ended, and what counts as a second Ctrl-C.

Imports only the standard library, since it is imported before everything else.
"""

from __future__ import annotations

import atexit
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_INTERRUPTED = 130
SAME_PRESS_S = 0.3
"""Signals closer together than this are one key press."""


def take() -> None:
    """Let SIGINT and SIGTERM end the process at once with exit 130, until another handler is installed.

    Also if SIGINT is ignored, as in a script's background jobs: ``kill -INT`` should end these too.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    atexit.register(_ignore)


def stop_signals() -> list[signal.Signals]:
    """The signals that end a command: SIGINT and SIGTERM, and SIGHUP unless it is ignored, as nohup wants it."""
    hangup = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hangup]


@contextmanager
def unwinding() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt in this block, so that it can clean up."""
    if signal.getsignal(signal.SIGINT) is not _leave:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _leave)


class KeyPresses:
    """Counts Ctrl-C presses. A wrapper (make, ``uv run``) forwards the SIGINT that the terminal has already sent to the
    whole process group: two signals within ``SAME_PRESS_S`` are one press."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self._clock = clock
        self._last = 0.0

    def is_new(self) -> bool:
        """Call it once per signal. False for a copy of the press counted last."""
        now = self._clock()
        if self.count and now - self._last < SAME_PRESS_S:
            return False
        self.count, self._last = self.count + 1, now
        return True


def _leave(*_: Any) -> None:
    """Raising an exception could surface anywhere in the middle of an import; there is nothing to clean up."""
    os.write(2, b"brimful: interrupted\n")
    os._exit(_INTERRUPTED)


def _ignore() -> None:
    """Interpreter shutdown has begun, and the exit code is known."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
