"""Signals while a run is under way. The second one ends it within moments, whatever hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from brimful.errors import ExitCode

LAST_RESORT_S = 2.0


class Signals:
    """A context manager around the loop's life; ``attach`` tells it the loop.

    SIGINT and SIGTERM are always taken: a shell's background jobs are born with SIGINT ignored, and ``kill -INT`` is
    to end them too. An ignored SIGHUP stays so: that is what nohup asks for.
    """

    def __init__(self, on_signal: Callable[[], None], on_last_resort: Callable[[], None]) -> None:
        """``on_signal`` is called on the loop; ``on_last_resort`` on a thread, just before the process is ended."""
        self._on_signal = on_signal
        self._on_last_resort = on_last_resort
        self._loop: asyncio.AbstractEventLoop | None = None
        self._count = 0
        self._over = False
        self._before: dict[int, Any] = {}
        self._timer: threading.Timer | None = None

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        if self._count:
            loop.call_soon(self._on_signal)

    def __enter__(self) -> Signals:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue
            self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The timer goes on: a thread may still hang in a connection when all else is done.
        self._over = True
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._on_signal)
        if self._count > 1 and self._timer is None:
            self._timer = threading.Timer(LAST_RESORT_S, self._end)
            self._timer.daemon = True
            self._timer.start()

    def _end(self) -> None:
        self._on_last_resort()
        if not self._over:
            os.write(2, b"brimful: ended at once; the same command goes on from here\n")
        os._exit(ExitCode.INTERRUPTED)
