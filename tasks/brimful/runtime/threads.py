"""A plain iterable, read without holding up the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

_T = TypeVar("_T")

_MOST = 256
_MOST_S = 0.02


async def threaded(items: Iterable[_T]) -> AsyncIterator[_T]:
    """Advanced in a thread, since it may block; several at a time where it does not."""
    source = iter(items)

    def some() -> list[_T]:
        taken: list[_T] = []
        end = time.monotonic() + _MOST_S
        for item in source:
            taken.append(item)
            if len(taken) == _MOST or time.monotonic() > end:
                break
        return taken

    while taken := await asyncio.to_thread(some):
        for item in taken:
            yield item
