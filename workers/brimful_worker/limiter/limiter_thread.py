"""The thread with an event loop on which a SyncLimiter's limiter runs, and what runs there for other threads."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

from brimful_worker.admission import Lease
from brimful_worker.limiter.errors import LimiterClosed
from brimful_worker.limiter.limiter import Limiter, LimiterSlot

T = TypeVar("T")
_CLOSED = "the limiter is closed"


class _Ending:
    """Whether the thread's end has begun. No work is taken from then on: it would be left behind and never run."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.begun = False


class LimiterThread:
    """A thread with an event loop and the limiter on it."""

    def __init__(self, limiter: Limiter) -> None:
        self.limiter = limiter
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="brimful-limiter", daemon=True)
        self._thread.start()
        self._ending = _Ending()
        self.stop = weakref.finalize(self, _stop, self._loop, self._thread, limiter, self.pid, self._ending)
        """Ends the thread; runs when the process ends, too."""

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Raises LimiterClosed once the thread is ending."""
        with self._ending.lock:
            if not self._ending.begun:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        raise LimiterClosed(_CLOSED)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Raises what ``work`` raises, and LimiterClosed if the thread ends meanwhile."""
        try:
            return self.submit(work).result()
        except CancelledError:
            raise LimiterClosed(_CLOSED) from None


def _stop(
    loop: asyncio.AbstractEventLoop, thread: threading.Thread, limiter: Limiter, pid: int, ending: _Ending
) -> None:
    if pid != os.getpid():
        return
    with ending.lock:
        ending.begun = True
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
    """Hold a slot for a thread until it leaves. Raises LeaseLost.

    When the slot is lost, the thread's watched connection is shut. Its lease is kept until it has left, so that a
    connection that is watched only then is shut, too.
    """
    try:
        async with slot as lease:
            granted.set_result(lease)
            left = asyncio.wrap_future(leave)
            try:
                error = await asyncio.shield(left)
            except asyncio.CancelledError:
                if any(one.lost for one in (lease, *lease.companions)):
                    lease.shut_now()
                    await asyncio.wait({left})
                raise
            if error is not None:
                raise _BodyFailed
    except _BodyFailed:
        return
    except BaseException as error:
        if granted.done():
            raise
        granted.set_exception(LimiterClosed(_CLOSED) if _cancelled(error) else error)


def _cancelled(error: BaseException) -> bool:
    return isinstance(error, asyncio.CancelledError)
