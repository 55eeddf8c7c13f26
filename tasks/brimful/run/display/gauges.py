"""The fleet's figures for a run's display, read from Redis at most once a second."""

from __future__ import annotations

import asyncio
import contextlib
import time

from redis.asyncio import Redis

from brimful.config import Settings
from brimful.state.redis_url import close_redis_client, redis_client
from brimful.state.status import Status, read_status_async, tag_in_use
from brimful.state.target import own_tag

_EVERY_S = 0.9
_TIMEOUT_S = 2.0


class GaugeReader:
    """Call it for the newest figures: None before :meth:`connect` and before the first worker.

    Keeps the last figures while Redis does not answer. Without an API key in ``settings`` it reads the figures of the
    only key whose workers run.
    """

    def __init__(self) -> None:
        self._client: Redis | None = None
        self._tag: str | None = None
        self._fleet = ""
        self._last: Status | None = None
        self._due = 0.0

    def connect(self, settings: Settings) -> None:
        assert settings.redis_url is not None
        self._client = redis_client(settings.redis_url)
        self._tag, self._fleet = own_tag(settings), settings.fleet

    async def __call__(self) -> Status | None:
        if self._client is not None and time.monotonic() >= self._due:
            self._due = time.monotonic() + _EVERY_S
            with contextlib.suppress(Exception):  # a display must not stop a run
                async with asyncio.timeout(_TIMEOUT_S):
                    self._last = await self._read(self._client)
        return self._last

    async def _read(self, client: Redis) -> Status | None:
        tag = self._tag or await tag_in_use(client, self._fleet)
        status = await read_status_async(client, tag) if tag is not None else None
        return None if status is None or status.slots is None else status

    async def aclose(self) -> None:
        if self._client is not None:
            await close_redis_client(self._client)
