"""The ``x-ratelimit-*`` headers, from a recent status of the fleet: they cost no command per request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from redis import RedisError

from brimful.state.status import Status

log = logging.getLogger(__name__)

_EVERY_S = 1.0


class RateHeaders:
    """One process's view of the fleet's window."""

    def __init__(self, read: Callable[[], Awaitable[Status]]) -> None:
        self._read = read
        self._status: Status | None = None
        self._wanted = asyncio.Event()
        self._wanted.set()

    async def watch(self) -> None:
        """Read the status once a second, while it is asked for. Never returns."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                self._status = await self._read()
            except (RedisError, OSError) as error:
                log.debug("no status for the headers: %s", type(error).__name__)
            await asyncio.sleep(_EVERY_S)

    def headers(self) -> dict[str, str]:
        """Limit, remaining and reset of requests and of tokens, as far as they are limited.

        The reset is when the window will be empty if nothing more starts: a window after the request that asks.
        """
        self._wanted.set()
        status = self._status
        if status is None:
            return {}
        found = {}
        reset = _duration(status.window_s + status.limits.get("guard_s", 0.0))
        limits = (("requests", status.starts, status.starts_used), ("tokens", status.tokens, status.tokens_used))
        for name, limit, used in limits:
            if limit is not None:
                found[f"x-ratelimit-limit-{name}"] = str(limit)
                found[f"x-ratelimit-remaining-{name}"] = str(max(0, limit - used))
                found[f"x-ratelimit-reset-{name}"] = reset
        return found


def _duration(seconds: float) -> str:
    """As OpenAI writes it: ``1m0.8s``."""
    minutes, rest = divmod(round(seconds, 3), 60)
    return f"{int(minutes)}m{rest:g}s" if minutes else f"{rest:g}s"
