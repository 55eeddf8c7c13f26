"""Waiting for a condition instead of a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

PATIENCE_S = 60.0
"""How long a state may take on a busy machine. It costs time only where a test fails."""
_POLL_S = 0.02


class NotReached(AssertionError):
    """What was waited for did not come about in time."""


def wait_until(condition: Callable[[], Any], what: str, timeout: float = PATIENCE_S) -> Any:
    """The condition's first true value. Fails naming ``what`` after ``timeout`` seconds."""
    end = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > end:
            raise NotReached(f"waited {timeout} s for: {what}")
        time.sleep(_POLL_S)
    return value


async def wait_until_async(
    condition: Callable[[], Any | Awaitable[Any]], what: str, timeout: float = PATIENCE_S
) -> Any:
    """As :func:`wait_until`, on the loop; the condition may be a coroutine function."""
    end = time.monotonic() + timeout
    while True:
        value = condition()
        if isinstance(value, Awaitable):
            value = await value
        if value:
            return value
        if time.monotonic() > end:
            raise NotReached(f"waited {timeout} s for: {what}")
        await asyncio.sleep(_POLL_S)
