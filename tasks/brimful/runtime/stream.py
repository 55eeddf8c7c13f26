"""A blocking iterator read in a thread: a slow pipe or an endless stream never stops the event loop, nor runs ahead."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import TypeVar

_Item = TypeVar("_Item")

AHEAD = 512
"""Items that may wait to be taken."""


async def in_thread(items: Iterator[_Item]) -> AsyncIterator[list[_Item]]:
    """What there is, as soon as there is something: lists of 1 to AHEAD items. Errors of ``items`` are raised here.

    The thread is a daemon: one that waits for a pipe's next line keeps nobody from leaving.
    """
    loop = asyncio.get_running_loop()
    there = asyncio.Event()
    room = threading.Semaphore(AHEAD)
    lock = threading.Lock()
    waiting: list[_Item] = []
    ended: list[BaseException | None] = []
    closed = threading.Event()

    def wake() -> None:
        try:
            loop.call_soon_threadsafe(there.set)
        except RuntimeError:  # the loop is closed
            closed.set()

    def read() -> None:
        error: BaseException | None = None
        try:
            for item in items:
                room.acquire()
                if closed.is_set():
                    return
                with lock:
                    waiting.append(item)
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
            await there.wait()
            there.clear()
            finished = list(ended)  # looked at before taking: nothing is added after it is set
            with lock:
                batch, waiting[:] = list(waiting), []
            if batch:
                yield batch
                for _ in batch:
                    room.release()
            if finished:
                if finished[0] is not None:
                    raise finished[0]
                return
    finally:
        closed.set()
        room.release()
