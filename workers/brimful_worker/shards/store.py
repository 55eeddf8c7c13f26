"""Stores outcomes in their run's ledger: many in one step, kept in memory while Redis is away."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any

from redis import RedisError
from redis.asyncio import Redis

from brimful.dispatch.ledger import TTL_S, Keys, result_fields
from brimful.outcome import Cause, Failure, Outcome
from brimful.runtime.aio import cancel_and_wait
from brimful.runtime.json_bytes import decode, encode
from brimful.state.redis_retry import refused_for_now

log = logging.getLogger(__name__)

_STORE = resources.files("brimful_worker.shards").joinpath("store.lua").read_text("utf-8")

_MOST, _MOST_BYTES = 128, 2 * 1024 * 1024
"""Outcomes and bytes of one step at most: Redis serves no other client meanwhile."""
_GATHER_S, _GATHER_PER_REQUEST_S = (0.005, 0.1), 5e-5
"""Seconds between two steps, unless a full batch waits: a step costs as much as ten outcomes in it, and no slot waits
for one."""
_LARGE, _TRIES = 2**20, 3
"""Bytes from which an outcome may be more than Redis takes at once (``proto-max-bulk-len`` is at least this), and the
failures in a row that show it."""
_PAUSE_S = (0.1, 2.0)
"""First and longest pause between retries while Redis is away."""


@dataclass(slots=True)
class _Item:
    shard: str
    fields: dict[Any, Any]
    last: Callable[[], bool]
    stored: asyncio.Future[None]

    @property
    def size(self) -> int:
        return len(self.fields["outcome"]) + len(self.fields["units"])

    def fail_as_too_large(self) -> None:
        """Keep of the outcome only what it took."""
        outcome = Outcome.from_message(decode(self.fields["outcome"]))
        message = f"the answer is too large for Redis: {self.size:,} bytes"
        failure = Failure(Cause.BAD_ANSWER, message, permanent=True)
        self.fields["outcome"] = encode(replace(outcome, completion=None, failure=failure).as_message())


@dataclass(eq=False)
class _Run:
    """A run's outcomes that wait. Only one run's keys are in one slot of a Redis Cluster."""

    keys: Keys
    items: deque[_Item] = field(default_factory=deque)
    full: asyncio.Event = field(default_factory=asyncio.Event)
    """A batch is full, or the store closes: do not wait for more."""

    def batch(self) -> list[_Item]:
        """The oldest items, as many as one step takes."""
        batch: list[_Item] = []
        size = 0
        for item in self.items:
            size += item.size
            if batch and (len(batch) == _MOST or size > _MOST_BYTES):
                break
            batch.append(item)
        return batch


class Store:
    """Stores the outcomes of all shards of one process. A run that cannot be stored does not hold up the others."""

    def __init__(self, client: Redis, in_hand: Callable[[], int] = lambda: 0, expires_s: int = TTL_S) -> None:
        """``in_hand()`` is the number of requests whose outcomes are still to come. A run's outcomes expire
        ``expires_s`` seconds after the last one."""
        self._redis = client
        self._expires_s = expires_s
        self._in_hand = in_hand
        self._script = client.register_script(_STORE)
        self._writers: dict[_Run, asyncio.Task[None]] = {}
        self._runs: dict[str, _Run] = {}
        self._next_step = 0.0
        self._closing = False

    @property
    def waiting(self) -> int:
        return sum(len(run.items) for run in self._runs.values())

    def put(
        self, keys: Keys, shard: str, id: str, units: Any, outcome: Outcome, *, last: Callable[[], bool]
    ) -> asyncio.Future[None]:
        """Returns a future that is done when Redis has the outcome and all of its run that were put before it, and
        cancelled if the store closes first.

        ``last()`` is called once, when it has been stored: whether its shard has ended with it.
        """
        stored = asyncio.get_running_loop().create_future()
        run = self._runs.get(keys.results)
        if run is None:
            run = self._runs[keys.results] = _Run(keys)
            self._writers[run] = asyncio.create_task(self._write(run))
        run.items.append(_Item(shard, result_fields(id, units, outcome), last, stored))
        if len(run.items) >= _MOST:
            run.full.set()
        return stored

    async def aclose(self, grace_s: float) -> None:
        """Waits at most ``grace_s`` seconds for what is not stored yet."""
        self._closing = True
        for run in self._runs.values():
            run.full.set()
        if self._writers:
            await asyncio.wait(self._writers.values(), timeout=grace_s)
        if self._writers:
            log.warning("%d outcomes could not be stored: Redis is away; they will be sampled again", self.waiting)
        await cancel_and_wait(self._writers.values())
        for run in self._runs.values():
            for item in run.items:
                item.stored.cancel()

    async def _write(self, run: _Run) -> None:
        pause, failures = _PAUSE_S[0], 0
        while run.items:
            await self._gather(run)
            batch = run.batch()
            try:
                await self._send(run.keys, batch)
            except (RedisError, OSError) as error:
                log.warning("%d outcomes wait for Redis: %s", len(run.items), type(error).__name__)
                failures += 1
                largest = max(batch, key=lambda item: item.size)
                if failures >= _TRIES and largest.size >= _LARGE and await self._answers(error):
                    largest.fail_as_too_large()
                    failures = 0
                    continue
                await asyncio.sleep(pause)
                pause = min(2 * pause, _PAUSE_S[1])
                continue
            pause, failures = _PAUSE_S[0], 0
            for _ in batch:
                run.items.popleft()
            await self._end(run.keys, batch)
        del self._runs[run.keys.results], self._writers[run]

    async def _answers(self, error: Exception) -> bool:
        """Whether Redis takes writes although a command failed: it closes the connection of one that is too large."""
        if refused_for_now(error):
            return False
        for _ in range(2):  # the first ping may go to the connection that Redis is closing
            with contextlib.suppress(RedisError, OSError):
                return bool(await self._redis.ping())
        return False

    async def _gather(self, run: _Run) -> None:
        """Wait until the next step is due, so that more outcomes go with it."""
        wait_s = self._next_step - time.monotonic()
        if wait_s > 0 and len(run.items) < _MOST and not self._closing:
            run.full.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await run.full.wait()
        self._next_step = time.monotonic() + between_steps_s(self._in_hand())

    async def _send(self, keys: Keys, batch: list[_Item]) -> None:
        hashes = {shard: index for index, shard in enumerate(dict.fromkeys(item.shard for item in batch), start=3)}
        arguments: list[Any] = [self._expires_s]
        for item in batch:
            arguments += (hashes[item.shard], item.fields["id"], item.fields["units"], item.fields["outcome"])
        await self._script(keys=[keys.results, keys.closed, *map(keys.shard, hashes)], args=arguments)

    async def _end(self, keys: Keys, batch: list[_Item]) -> None:
        """Remove the shards that ended. If this fails, the submitter's reconciliation does it."""
        ended = {item.shard for item in batch if item.last()}
        for item in batch:
            if not item.stored.done():
                item.stored.set_result(None)
        if not ended:
            return
        with contextlib.suppress(RedisError, OSError):
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.zrem(keys.shards, *ended)
                pipe.delete(*map(keys.claim, ended), *map(keys.tries, ended), *map(keys.shard, ended))
                await pipe.execute()


def between_steps_s(in_hand: int) -> float:
    """Seconds between two steps. ``in_hand``: requests whose outcomes are still to come."""
    least, most = _GATHER_S
    return min(max(least, in_hand * _GATHER_PER_REQUEST_S), most)
