"""What asyncio leaves to its users."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterable
from typing import Any, TypeVar, cast

_T = TypeVar("_T")

_AGAIN_S = 0.2


async def cancel_and_wait(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks until they are done; what they raise is not told.

    Once is not enough: redis-py loses a cancellation that arrives while it takes a connection out of its pool, and a
    loop around such a call then goes on as if nothing had happened.
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
    """An async generator, not begun, whose holder closes it: when its loop ends, the loop does not do so too, at the
    same time as a generator around it."""

    def __init__(self, source: AsyncIterator[_T]) -> None:
        self._generator = cast("AsyncGenerator[_T, None]", source)

    @property
    def running(self) -> bool:
        """Whether somebody waits for its next item."""
        return bool(cast("Any", self._generator).ag_running)

    def __anext__(self) -> Awaitable[_T]:
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(None, None)  # with the first item a generator is made known to its loop
        try:
            return self._generator.__anext__()
        finally:
            sys.set_asyncgen_hooks(*hooks)

    async def aclose(self) -> None:
        await self._generator.aclose()
