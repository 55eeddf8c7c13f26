"""Runs a user's functions beside the driver's loop: few at a time, and none longer than its time limit.

Functions run in daemon threads, coroutines on a loop in a thread of its own, so neither stops the driver's loop nor
keeps the process from ending. A function cannot be ended from outside: one that takes too long keeps its thread, and
another thread takes its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

_T = TypeVar("_T")
_Job = tuple["Future[Any]", Callable[..., Any], tuple[Any, ...]]
_LATE_S = 1.0
"""Seconds that a coroutine has to end itself at its time limit, before its loop counts as blocked."""


class OutOfTime(Exception):
    """The call took longer than its time limit."""


class Abandoned(Exception):
    """The calls were given up (:meth:`BoundedCalls.abandon`)."""


class BoundedCalls:
    """Calls functions in threads, a few at a time. Use on one event loop. The functions must catch their exceptions."""

    def __init__(self, workers: int, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.stuck = 0
        """Calls that took too long and have not ended since."""
        self._over: asyncio.Future[None] | None = None
        self._abandoned = False
        self._places = asyncio.Semaphore(workers)
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._idle = 0
        """Threads that wait for a job, or have one waiting for them."""
        self._threads = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    async def call(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Run a function in a thread. Raises OutOfTime and Abandoned."""
        async with self._places:
            if self._abandoned:
                raise Abandoned
            future: Future[_T] = Future()
            if not self._idle:
                threading.Thread(target=self._work, name="brimful-hook", daemon=True).start()
                self._threads += 1
            else:
                self._idle -= 1
            self._jobs.put((future, function, arguments))
            return await self._limited(future, self.timeout_s, in_thread=True)

    async def run(self, function: Callable[..., Coroutine[Any, Any, _T]], *arguments: Any) -> _T:
        """As :meth:`call`, of an async function, on the loop for hooks. It is cancelled at its time limit."""
        async with self._places:
            if self._abandoned:
                raise Abandoned
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=_serve, args=(self._loop,), name="brimful-hooks-loop", daemon=True).start()
            limited = _within(function, arguments, self.timeout_s)
            future = asyncio.run_coroutine_threadsafe(limited, self._loop)
            return await self._limited(future, self.timeout_s + _LATE_S, in_thread=False)

    def abandon(self) -> None:
        """Begin nothing more and wait for nothing more: all calls raise Abandoned."""
        self._abandoned = True
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

    def close(self) -> None:
        """Let idle threads end."""
        for _ in range(self._threads):
            self._jobs.put(None)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(_cancel_all, self._loop)
            self._loop = None

    async def _limited(self, future: Future[_T], timeout_s: float, *, in_thread: bool) -> _T:
        loop = asyncio.get_running_loop()
        waiting = asyncio.wrap_future(future)
        if self._over is None:
            self._over = loop.create_future()
        either: list[asyncio.Future[Any]] = [waiting, self._over]
        await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            self._idle += in_thread
            return waiting.result()
        self.stuck += 1

        def ended(_: Future[_T]) -> None:
            self.stuck -= 1
            self._idle += in_thread

        def later(ended_future: Future[_T]) -> None:
            with contextlib.suppress(RuntimeError):  # the run is over
                loop.call_soon_threadsafe(ended, ended_future)

        future.add_done_callback(later)
        waiting.add_done_callback(lambda each: each.cancelled() or each.exception())  # nobody waits for it any more
        raise Abandoned if self._abandoned else OutOfTime

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            future, function, arguments = job
            try:
                future.set_result(function(*arguments))
            except BaseException as error:
                future.set_exception(error)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.call_soon(loop.stop)  # once they have seen it


async def _within(function: Callable[..., Coroutine[Any, Any, _T]], arguments: tuple[Any, ...], timeout_s: float) -> _T:
    task = asyncio.ensure_future(function(*arguments))
    done, _ = await asyncio.wait({task}, timeout=timeout_s)
    if not done:
        task.cancel()
        raise OutOfTime
    return task.result()
