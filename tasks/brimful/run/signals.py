"""SIGINT, SIGTERM and SIGHUP during a run: the second press ends the process within seconds, whatever hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from brimful.errors import ExitCode
from brimful.runtime.interrupt import KeyPresses, stop_signals

LAST_RESORT_S = 2.0


class Signals:
    """A context manager around the event loop's life; :meth:`attach` names the loop.

    Takes SIGINT even if it is ignored, as in a script's background jobs: ``kill -INT`` should end these too. An ignored
    SIGHUP stays ignored.
    """

    def __init__(self, on_signal: Callable[[], None], on_last_resort: Callable[[], None]) -> None:
        """``on_signal`` runs on the loop, once a key press; ``on_last_resort`` on a thread, before ``os._exit``."""
        self._on_signal = on_signal
        self._on_last_resort = on_last_resort
        self._loop: asyncio.AbstractEventLoop | None = None
        self._presses = KeyPresses()
        self._over = False
        self._before: dict[int, Any] = {}

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        if self._presses.count:
            loop.call_soon(self._on_signal)

    def __enter__(self) -> Signals:
        for number in stop_signals():
            self._before[number] = signal.signal(number, self._on_press)
        return self

    def __exit__(self, *_: object) -> None:
        # The timer stays: a thread may still hang in a connection when all else is done.
        self._over = True
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _on_press(self, *_: object) -> None:
        if not self._presses.is_new():
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._on_signal)
        if self._presses.count == 2:
            timer = threading.Timer(LAST_RESORT_S, self._end)
            timer.daemon = True
            timer.start()

    def _end(self) -> None:
        self._on_last_resort()
        if not self._over:
            os.write(2, b"brimful: stopped at once; the same command resumes this run\n")
        os._exit(ExitCode.INTERRUPTED)
