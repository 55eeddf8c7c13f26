"""The one event loop of a worker process, in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import uvloop

log = logging.getLogger(__name__)
_T = TypeVar("_T")


class LoopThread:
    """A uvloop loop that runs from :meth:`start` to :meth:`stop`, whatever its tasks raise."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._stopping = False
        self._thread = threading.Thread(target=self._main, name="brimful-loop", daemon=True)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Run a coroutine on the loop; safe from every thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def stop(self, grace_s: float) -> None:
        """Cancel what still runs, wait for it for at most ``grace_s`` seconds, end the thread. Idempotent."""
        if self._stopping or not self._thread.is_alive():
            return
        end = time.monotonic() + grace_s
        try:
            self.submit(_cancel_all(grace_s)).result(grace_s + 1.0)
        except TimeoutError:
            log.warning("the event loop did not answer for %.1f s; it is left behind", grace_s + 1.0)
        self._stopping = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(max(1.0, end - time.monotonic()))

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._stopping:
            try:
                self.loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                # A task of a task raised it. One body must not end the loop under all the others.
                log.error("%s raised inside a coroutine is ignored", type(error).__name__)
        self.loop.close()


async def _cancel_all(grace_s: float) -> None:
    mine = asyncio.current_task()
    tasks = [task for task in asyncio.all_tasks() if task is not mine]
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=grace_s)
