"""What asyncio lacks: cancelling tasks that lose a cancellation, async generators closed by their owner alone, and
timers of a process that fire together."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterable
from typing import Any, TypeVar, cast

_T = TypeVar("_T")

_AGAIN_S = 0.2
_TICK_S = 1.0
_PHASE_S = random.randrange(1000) / 1000
"""Differs between processes, so that those of one machine do not wake together."""
_EARLY_S = 0.005
"""By how much a timer may fire before its tick."""


def until_tick(every_s: float) -> float:
    """Seconds to sleep in a loop that does something every ``every_s`` seconds; up to a second less at first.

    The sleep ends at a tick. Ticks are a second apart, or ``every_s`` if that is less, and the same for all work on
    this event loop: when it wakes for one timer, others are due too. To wake costs more than what most of them do.
    """
    now = asyncio.get_running_loop().time()
    latest = now + every_s + _EARLY_S
    return latest - (latest - _PHASE_S) % min(every_s, _TICK_S) - now


async def cancel_and_wait(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks, again and again until they are done; ignores what they raise.

    Once is not enough: redis-py loses a cancellation that arrives while it takes a connection out of its pool, and a
    loop around such a call then goes on.
    """
    pending = {task for task in tasks if not task.done()}
    while pending:
        for task in pending:
            task.cancel()
        done, pending = await asyncio.wait(pending, timeout=_AGAIN_S)
        for task in done:
            if not task.cancelled():
                task.exception()


class OwnedAsyncGenerator(AsyncIterator[_T]):
    """An async generator that its owner must close.

    Keeps the event loop's shutdown hook from closing it a second time, while its owner does.
    """

    def __init__(self, source: AsyncIterator[_T]) -> None:
        """``source`` is a generator that was not advanced yet."""
        self._generator = cast("AsyncGenerator[_T, None]", source)

    @property
    def running(self) -> bool:
        """Whether a task waits for its next item."""
        return bool(cast("Any", self._generator).ag_running)

    def __anext__(self) -> Awaitable[_T]:
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(None, None)  # a generator registers with its loop at its first item
        try:
            return self._generator.__anext__()
        finally:
            sys.set_asyncgen_hooks(*hooks)

    async def aclose(self) -> None:
        await self._generator.aclose()
