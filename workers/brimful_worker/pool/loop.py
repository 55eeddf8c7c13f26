"""The one event loop of a worker process, in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
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
        """Run a coroutine on the loop. From any thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def stop(self, grace_s: float) -> None:
        """Cancel what still runs, wait at most ``grace_s`` seconds for it, and end the thread. Idempotent."""
        if self._stopping or not self.alive:
            return
        try:
            self.submit(_cancel_all(grace_s)).result(grace_s + 1.0)
        except TimeoutError:
            log.warning("the event loop did not answer for %.1f s and is abandoned", grace_s + 1.0)
        self._stopping = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(1.0)

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._stopping:
            try:
                self.loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                # A task started by a task raised it. One body must not end the loop under all the others.
                log.error("%s raised inside a coroutine is ignored", type(error).__name__)
        self.loop.close()


async def _cancel_all(grace_s: float) -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=grace_s)
