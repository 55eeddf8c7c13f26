"""Outcomes on their way to the run's ledger: many in one step, kept here for as long as Redis is away."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any

from redis import RedisError
from redis.asyncio import Redis

from brimful.dispatch.ledger import TTL_S, Keys, result_fields
from brimful.outcome import Outcome
from brimful.runtime.aio import cancel_and_wait
from brimful_worker.admission.policy import gather_s

log = logging.getLogger(__name__)

_STORE = resources.files("brimful_worker.shards").joinpath("store.lua").read_text("utf-8")

_MOST = 128
"""Outcomes in one step at most, and _MOST_BYTES of them: Redis serves nobody else meanwhile."""
_MOST_BYTES = 2 * 1024 * 1024
_GATHER_S = 0.005
"""Steps are begun so far apart at least, unless a full batch waits: a step costs as much as ten outcomes in it. Where
many requests are in hand, further (:func:`gather_s`)."""
_PAUSE_S = (0.1, 2.0)
"""First and longest pause between tries while Redis is away."""


@dataclass(slots=True)
class _Item:
    keys: Keys
    shard: str
    id: str
    fields: dict[Any, Any]
    last: Callable[[], bool]
    stored: asyncio.Future[None]

    @property
    def size(self) -> int:
        return len(self.fields["outcome"]) + len(self.fields["units"])

    @property
    def arguments(self) -> tuple[Any, Any, Any]:
        return self.fields["id"], self.fields["units"], self.fields["outcome"]


class Store:
    """One writer for all shards of a process, on the loop on which :meth:`start` was called."""

    def __init__(self, client: Redis, in_hand: Callable[[], int] = lambda: 0) -> None:
        """``in_hand`` tells how many requests' outcomes are still to come."""
        self._redis = client
        self._in_hand = in_hand
        self._script = client.register_script(_STORE)
        self._items: dict[str, deque[_Item]] = {}
        """By run: only a run's own keys are sure to be in one slot of a Redis Cluster. None is empty."""
        self._failing: dict[str, tuple[float, float]] = {}
        """Runs whose last step failed: when to try again (``time.monotonic``), and after how long a pause."""
        self._some = asyncio.Event()
        self._full = asyncio.Event()
        """A batch is full, or the store closes: more are not waited for."""
        self._closing = False
        self._writer: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._writer = asyncio.create_task(self._write())

    @property
    def waiting(self) -> int:
        return sum(map(len, self._items.values()))

    def put(
        self, keys: Keys, shard: str, id: str, units: Any, outcome: Outcome, *, last: Callable[[], bool]
    ) -> asyncio.Future[None]:
        """Done when Redis has it, and all of its run that were put before it; cancelled where that does not come to be.

        ``last()`` is called once, when it has been stored: whether its shard has ended with it.
        """
        stored = asyncio.get_running_loop().create_future()
        item = _Item(keys, shard, id, result_fields(id, units, outcome), last, stored)
        self._items.setdefault(keys.results, deque()).append(item)
        self._some.set()
        if self.waiting >= _MOST:
            self._full.set()
        return stored

    async def aclose(self, grace_s: float) -> None:
        """Waits ``grace_s`` seconds at most for what is not stored yet."""
        if self._writer is None:
            return
        self._closing = True
        self._full.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while self._items:
                    await asyncio.wait([items[-1].stored for items in self._items.values()])
        if self._items:
            log.warning("%d outcomes could not be stored: Redis is away; they will be sampled again", self.waiting)
        await cancel_and_wait([self._writer])
        for items in self._items.values():
            for item in items:
                item.stored.cancel()

    async def _write(self) -> None:
        next_at = 0.0
        while True:
            await self._some.wait()
            await self._gather(next_at - time.monotonic())
            now = time.monotonic()
            next_at = now + max(_GATHER_S, gather_s(self._in_hand()))
            due = [run for run in self._items if self._failing.get(run, (0.0, 0.0))[0] <= now]
            for run in due:
                await self._try(run)
            if not self._items:
                self._some.clear()
            elif not due:
                await asyncio.sleep(_PAUSE_S[0])

    async def _try(self, run: str) -> None:
        """One run's trouble is not the others'."""
        try:
            await self._step(run)
        except (RedisError, OSError) as error:
            log.warning("%d outcomes wait for Redis: %s", len(self._items[run]), type(error).__name__)
            pause = min(2 * self._failing.get(run, (0.0, _PAUSE_S[0] / 2))[1], _PAUSE_S[1])
            self._failing[run] = time.monotonic() + pause, pause
        else:
            self._failing.pop(run, None)

    async def _step(self, run: str) -> None:
        """The oldest of one run."""
        items = self._items[run]
        batch = _batch(items)
        await self._send(batch)
        for _ in batch:
            items.popleft()
        if not items:
            del self._items[run]
        await self._end(batch)

    async def _gather(self, seconds: float) -> None:
        """Lets outcomes come together for so long at most."""
        if self.waiting >= _MOST or self._closing or seconds <= 0:
            return
        self._full.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._full.wait()

    async def _send(self, batch: list[_Item]) -> None:
        keys = batch[0].keys
        hashes = {shard: place for place, shard in enumerate(dict.fromkeys(item.shard for item in batch), start=2)}
        arguments: list[Any] = [TTL_S]
        for item in batch:
            arguments += (hashes[item.shard], *item.arguments)
        await self._script(keys=[keys.results, *map(keys.shard, hashes)], args=arguments)

    async def _end(self, batch: list[_Item]) -> None:
        """The shards that ended are struck off. Should that fail, the submitter's sweep does it."""
        ended = {item.shard for item in batch if item.last()}
        for item in batch:
            if not item.stored.done():
                item.stored.set_result(None)
        if not ended:
            return
        keys = batch[0].keys
        with contextlib.suppress(RedisError, OSError):
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.zrem(keys.shards, *ended)
                pipe.delete(*map(keys.claim, ended), *map(keys.tries, ended), *map(keys.shard, ended))
                await pipe.execute()


def _batch(items: deque[_Item]) -> list[_Item]:
    """The first of them, as many as one step takes."""
    batch: list[_Item] = []
    size = 0
    for item in items:
        if batch and (len(batch) == _MOST or size + item.size > _MOST_BYTES):
            break
        batch.append(item)
        size += item.size
    return batch
