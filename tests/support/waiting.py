"""Waiting for a condition instead of a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

PATIENCE_S = 60.0
"""How long a state may take on a busy machine. It costs time only where a test fails."""
_POLL_S, _RARELY_S = 0.02, 0.06
"""Seconds between two looks: at first, and in waits of several seconds, whose looks would cost more than the work."""


def _pause_s(waited_s: float) -> float:
    return min(_RARELY_S, max(_POLL_S, waited_s / 50))


class NotReached(AssertionError):
    """What was waited for did not come about in time."""


def wait_until(condition: Callable[[], Any], what: str, timeout: float = PATIENCE_S) -> Any:
    """The condition's first true value. Fails naming ``what`` after ``timeout`` seconds."""
    began = time.monotonic()
    while not (value := condition()):
        if (waited_s := time.monotonic() - began) > timeout:
            raise NotReached(f"waited {timeout} s for: {what}")
        time.sleep(_pause_s(waited_s))
    return value


async def wait_until_async(
    condition: Callable[[], Any | Awaitable[Any]], what: str, timeout: float = PATIENCE_S
) -> Any:
    """As :func:`wait_until`, on the loop; the condition may be a coroutine function."""
    began = time.monotonic()
    while True:
        value = condition()
        if isinstance(value, Awaitable):
            value = await value
        if value:
            return value
        if (waited_s := time.monotonic() - began) > timeout:
            raise NotReached(f"waited {timeout} s for: {what}")
        await asyncio.sleep(_pause_s(waited_s))
