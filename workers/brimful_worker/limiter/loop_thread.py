"""The thread with an event loop on which a SyncLimiter's limiter runs, and what runs there for other threads."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from brimful_worker.admission import Lease
from brimful_worker.limiter.errors import LimiterClosed
from brimful_worker.limiter.limiter import Limiter, LimiterSlot

T = TypeVar("T")


class LoopThread:
    """A thread with an event loop and the limiter on it."""

    def __init__(self, limiter: Limiter) -> None:
        self.limiter = limiter
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="brimful-limiter", daemon=True)
        self._thread.start()
        self.stop = weakref.finalize(self, _stop, self._loop, self._thread, limiter, self.pid)
        """Ends the thread; runs when the process ends, too."""

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        return self.submit(work).result()


def _stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread, limiter: Limiter, pid: int) -> None:
    if pid != os.getpid():
        return
    closing = asyncio.run_coroutine_threadsafe(_close(limiter), loop)
    if threading.current_thread() is thread:  # the garbage collector ran on it: it cannot wait for itself
        closing.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))
        return
    closing.result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def _close(limiter: Limiter) -> None:
    """Close, and end the tasks that hold slots: each may have a thread that waits for it."""
    await limiter.aclose()
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)


class _BodyFailed(Exception):
    """The block raised, which its slot is to know."""


async def hold(slot: LimiterSlot, granted: Future[Lease], leave: Future[BaseException | None]) -> None:
    """Hold a slot for a thread until it leaves. Raises LeaseLost."""
    try:
        async with slot as lease:
            granted.set_result(lease)
            if await asyncio.shield(asyncio.wrap_future(leave)) is not None:
                raise _BodyFailed
    except _BodyFailed:
        return
    except BaseException as error:
        if granted.done():
            raise
        granted.set_exception(LimiterClosed("the limiter is closed") if _cancelled(error) else error)


def _cancelled(error: BaseException) -> bool:
    return isinstance(error, asyncio.CancelledError)
