"""Reading a blocking iterable in a thread, so that a slow pipe or generator never stops the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import TypeVar

_T = TypeVar("_T")

AHEAD = 512
"""Items that wait for the consumer at most."""
AHEAD_BYTES = 32 << 20


async def read_in_thread(items: Iterable[_T]) -> AsyncGenerator[_T, None]:
    """The items one by one. Raises what ``items`` raises."""
    async with contextlib.aclosing(batches_in_thread(items)) as batches:
        async for batch in batches:
            for item in batch:
                yield item


async def batches_in_thread(
    items: Iterable[_T], size: Callable[[_T], int] = lambda item: 0
) -> AsyncGenerator[list[_T], None]:
    """Lists of 1 to :data:`AHEAD` items, each as soon as there is one. Raises what ``items`` raises.

    ``size``: an item's bytes; about :data:`AHEAD_BYTES` of them wait for the consumer at most.

    The thread is a daemon: one that waits for a pipe's next line does not keep the process from ending.
    """
    loop = asyncio.get_running_loop()
    something = asyncio.Event()
    lock = threading.Condition()
    waiting: list[_T] = []
    ended: list[BaseException | None] = []
    closed = False
    held = 0

    def wake() -> None:
        nonlocal closed
        try:
            loop.call_soon_threadsafe(something.set)
        except RuntimeError:  # the loop is closed
            closed = True

    def read() -> None:
        nonlocal held
        error: BaseException | None = None
        try:
            for item in items:
                with lock:
                    while (len(waiting) >= AHEAD or held > AHEAD_BYTES) and not closed:
                        lock.wait()
                    if closed:
                        return
                    waiting.append(item)
                    held += size(item)
                    first = len(waiting) == 1
                if first:
                    wake()
        except BaseException as caught:
            error = caught
        ended.append(error)
        wake()

    threading.Thread(target=read, name="brimful-input", daemon=True).start()
    try:
        while True:
            await something.wait()
            something.clear()
            last = list(ended)  # read before the items: none is added once it is set
            with lock:
                batch, waiting[:], held = list(waiting), [], 0
                lock.notify()
            if batch:
                yield batch
            if last:
                if last[0] is not None:
                    raise last[0]
                return
    finally:
        with lock:
            closed = True
            lock.notify()
