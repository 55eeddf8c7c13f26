"""Throughput that running requests share, as those of one local server do.

Processor sharing: with k requests running, each generates ``tokens_per_s / k`` tokens a second.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools


class SharedThroughput:
    """``await generate(tokens)`` takes as long as the server needs for them beside the other requests."""

    def __init__(self, tokens_per_s: float) -> None:
        self.tokens_per_s = tokens_per_s
        # Progress in tokens of a request that has run from the start. A request ends when it has grown by its tokens.
        self._progress = 0.0
        self._read_at = 0.0
        self._running: list[tuple[float, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    async def generate(self, tokens: float) -> None:
        loop = asyncio.get_running_loop()
        self._advance(loop.time())
        done: asyncio.Future[None] = loop.create_future()
        entry = (self._progress + tokens, next(self._numbers), done)
        heapq.heappush(self._running, entry)
        self._schedule(loop)
        try:
            await done
        except asyncio.CancelledError:
            if entry in self._running:
                self._advance(loop.time())
                self._running.remove(entry)
                heapq.heapify(self._running)
                self._schedule(loop)
            raise

    def _advance(self, now: float) -> None:
        if self._running:
            self._progress += (now - self._read_at) * self.tokens_per_s / len(self._running)
        self._read_at = now

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._running:
            seconds = (self._running[0][0] - self._progress) * len(self._running) / self.tokens_per_s
            self._timer = loop.call_later(max(0.0, seconds), self._finish, loop)

    def _finish(self, loop: asyncio.AbstractEventLoop) -> None:
        self._advance(loop.time())
        while self._running and self._running[0][0] <= self._progress + 1e-6:
            done = heapq.heappop(self._running)[2]
            if not done.done():
                done.set_result(None)
        self._schedule(loop)
