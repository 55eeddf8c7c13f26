"""A caller's limit of requests at once, over all front doors: requests above it wait, first come, first served.

Each front door that has requests of such a caller asks Redis (slots.lua) when some come or end, and ten times a second
while some wait. What it holds when it dies is free after :data:`_LEASE_MS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice

from brimful.runtime.aio import cancel_and_wait
from brimful.state.callers.tokens import CallerRecord
from brimful.state.keys import caller_slots_keys
from brimful.state.redis_retry import REDIS_ERRORS
from brimful_worker.serve.callers.clock import CallersClock, timed_script
from brimful_worker.singles.pipeline import SharedPipeline

log = logging.getLogger(__name__)

_SCRIPT = timed_script("slots.lua")
_LEASE_MS = 10_000
_COUNTS_MS = 2_000
"""For how long what waits at a front door keeps its places, if it does not ask again."""
_ASK_S = 0.1
_UNLIMITED = 1_000_000
_RENEW_S = _LEASE_MS / 4000


class CallerSlots:
    """Keeps callers within their limits of requests at once, at one front door. Use it on one event loop."""

    def __init__(self, fleet: str, named: Callable[[str], CallerRecord | None], clock: CallersClock) -> None:
        """``named``: the caller of a name as it is now, whose limit may have been changed."""
        self._fleet = fleet
        self._clock = clock
        self._named = named
        self._door = secrets.token_hex(5)
        self._number = 0
        self._queues: dict[str, _CallerQueue] = {}

    @asynccontextmanager
    async def hold(self, pipeline: SharedPipeline, caller: CallerRecord | None) -> AsyncIterator[None]:
        """Wait until the caller may have one more request; it has, until the block ends."""
        if caller is None or not caller.slots:
            yield
            return
        queue = self._queues.get(caller.name)
        if queue is None or queue.working.done():
            keys = caller_slots_keys(self._fleet, caller.name)
            run = partial(self._clock.call, pipeline, _SCRIPT, keys, self._door)
            queue = self._queues[caller.name] = _CallerQueue(run, partial(self._limit, caller))
        self._number += 1
        request = f"{self._door}.{self._number:09d}"  # those of one command wait in the order of their texts
        try:
            await queue.enter(request)
            yield
        finally:
            queue.leave(request)

    def _limit(self, caller: CallerRecord) -> int:
        slots = (self._named(caller.name) or caller).slots
        return slots or _UNLIMITED

    async def aclose(self) -> None:
        """What is held is free when its leases end."""
        await cancel_and_wait([queue.working for queue in self._queues.values()])


class _CallerQueue:
    """One caller's requests at this front door."""

    def __init__(self, run: Callable[..., Awaitable[list[bytes]]], limit: Callable[[], int]) -> None:
        """``run``: slots.lua, with the arguments from the second on."""
        self._run = run
        self._limit = limit
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._held: set[str] = set()
        self._ended: set[str] = set()
        self._news = asyncio.Event()
        self.working = asyncio.create_task(self._work())
        """Done when nothing is left to do."""

    async def enter(self, request: str) -> None:
        self._waiting[request] = entered = asyncio.get_running_loop().create_future()
        self._news.set()
        await entered

    def leave(self, request: str) -> None:
        self._waiting.pop(request, None)
        self._held.discard(request)
        self._ended.add(request)
        self._news.set()

    async def _work(self) -> None:
        await asyncio.sleep(0)  # until the first one has entered
        while self._waiting or self._held or self._ended:
            self._news.clear()
            try:
                await self._ask()
            except REDIS_ERRORS as error:
                log.debug("a caller's slots could not be asked for: %s", type(error).__name__)
                await asyncio.sleep(_ASK_S)
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ASK_S if self._waiting else _RENEW_S):
                    await self._news.wait()

    async def _ask(self) -> None:
        ended, limit = self._ended.copy(), self._limit()
        told = {"ask": list(islice(self._waiting, limit)), "hold": list(self._held), "end": list(ended)}
        granted = await self._run(limit, _LEASE_MS, _COUNTS_MS, json.dumps(told))
        self._ended -= ended
        for request in map(bytes.decode, granted):
            if (entered := self._waiting.pop(request, None)) is None:
                self._ended.add(request)
            else:
                self._held.add(request)
                if not entered.done():
                    entered.set_result(None)
