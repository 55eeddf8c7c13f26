"""The page's figures, read once a second for all who look, and kept for a quarter of an hour."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import redis

from brimful.addresses import FleetAddress
from brimful.errors import FleetError, RedisUnreachable
from brimful.runtime import json_bytes
from brimful.state.redis_url import sync_redis_client
from brimful_worker.serve.page.batches import ShownBatches
from brimful_worker.serve.page.figures import read_figures
from brimful_worker.serve.page.recent import Recent

log = logging.getLogger(__name__)

KEPT_S = 900.0
_EVERY_S = 1.0
_UNWATCHED_S = 15.0
"""So that a page that is opened shows the last minutes."""
_TIMEOUT_S = 5.0
POINT = ("at", "slots", "starts", "tokens", "interactive", "batch", "answered", "spent", "throttled", "failed", "pause")
"""A point of the history: Unix seconds; the fleet's used slots, starts, tokens in the window and waiting requests; this
door's answers, tokens, 429s and failures since it started; whether the fleet pauses (0 or 1)."""


class Feed:
    """The figures and their history in one front-door process."""

    def __init__(
        self,
        address: FleetAddress,
        tag: Callable[[], str],
        door: Callable[[], dict[str, Any]],
        batches: ShownBatches,
    ) -> None:
        """``tag``: of the API key in use. ``door``: what the page shows of this front door itself."""
        timeouts = {"socket_timeout": _TIMEOUT_S, "socket_connect_timeout": _TIMEOUT_S}
        self._client = sync_redis_client(address.redis_url, **timeouts)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="brimful-page")
        self._address = address
        self._tag = tag
        self._door = door
        self._batches = batches
        self._history: deque[list[float]] = deque()
        self._event = b""
        self._news = asyncio.Event()
        self.viewers = 0
        self._watched = asyncio.Event()
        self._closed = False

    async def run(self, recent: Recent) -> None:
        """Never returns. All viewers end when it is cancelled."""
        try:
            while True:
                await self._look(recent)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_UNWATCHED_S):
                        await self._watched.wait()
                        await asyncio.sleep(_EVERY_S)
        finally:
            self._closed = True
            self._news.set()
            self._thread.submit(self._client.close)  # figures that are being read are read first
            self._thread.shutdown(wait=False)

    async def events(self) -> AsyncGenerator[bytes]:
        """Server-sent events: ``history``, then ``now`` once a second, as soon as there are figures."""
        self.viewers += 1
        self._watched.set()
        try:
            history = {"kept_s": KEPT_S, "names": POINT, "points": list(self._history)}
            yield _event("history", history) + self._event
            while True:
                await self._news.wait()
                if self._closed:
                    return
                yield self._event
        finally:
            self.viewers -= 1
            if not self.viewers:
                self._watched.clear()

    async def _look(self, recent: Recent) -> None:
        found: dict[str, Any] | None = None
        try:
            reading = partial(read_figures, self._client, self._tag(), self._address)
            found = await asyncio.get_running_loop().run_in_executor(self._thread, reading)
        except (RedisUnreachable, redis.RedisError, OSError) as error:
            log.debug("no figures for the page: %s", type(error).__name__)
        now = time.time()
        point = None if found is None else _point(now, found, recent)
        if point is not None:
            self._history.append(point)
        while self._history and self._history[0][0] < now - KEPT_S:
            self._history.popleft()
        door = {**self._door(), "batches": await self._read_batches()}
        self._event = _event("now", {"at": now, "fleet": found, "door": door, "point": point})
        self._news.set()
        self._news = asyncio.Event()

    async def _read_batches(self) -> list[dict[str, Any]] | None:
        """None if they cannot be read, or nobody looks."""
        if not self.viewers:
            return None
        try:
            return await asyncio.to_thread(self._batches.read)
        except (OSError, FleetError) as error:
            log.debug("no batches for the page: %s", type(error).__name__)
            return None


def _point(now: float, fleet: dict[str, Any], recent: Recent) -> list[float]:
    waiting = fleet["waiting"]
    return [
        round(now, 2),
        *(fleet["slots_used"], fleet["starts_used"], fleet["tokens_used"]),
        *(waiting.get("interactive", 0), waiting.get("batch", 0)),
        *(recent.answered.total(), recent.tokens, recent.throttled, recent.failed.total()),
        int(fleet["pause_s"] > 0),
    ]


def _event(name: str, document: Any) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + json_bytes.encode(document) + b"\n\n"
