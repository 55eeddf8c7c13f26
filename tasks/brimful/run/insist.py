"""Ask Redis until it answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from redis import RedisError

log = logging.getLogger(__name__)

_T = TypeVar("_T")
AWAY = (RedisError, OSError)
_PAUSE_S = 0.5


async def insist(call: Callable[[], Awaitable[_T]]) -> _T:
    """``call`` may be made any number of times."""
    warned = False
    while True:
        try:
            return await call()
        except AWAY as error:
            if not warned:
                log.warning("Redis does not answer (%s); trying on", type(error).__name__)
            warned = True
            await asyncio.sleep(_PAUSE_S)
