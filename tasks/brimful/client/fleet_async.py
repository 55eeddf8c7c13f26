"""The client's asyncio face. Services import it from :mod:`brimful.client.fleet`, whose ``Fleet`` has the same methods.

Celery's own calls block, so they are made in threads; results are looked for by one task, whoever awaits them. Redis
being away while results are awaited is sat out.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from celery.result import AsyncResult
from redis import RedisError

from brimful.client.base import Client
from brimful.client.mapping import Asked, MapRun, Sampled
from brimful.errors import Cancelled
from brimful.names import Workload
from brimful.packing.units import PackOption
from brimful.runtime.aio import OwnedAsyncGenerator, cancel_and_wait
from brimful.state.redis_url import close_redis_client, redis_client

_POLL_S = (0.02, 0.25)
"""First and longest pause between looks for results; one look asks for all that are awaited."""


class AsyncFleet(Client):
    """For asyncio; use it on one loop, and ``aclose()`` it or use it as an async context manager."""

    def __init__(self, redis_url: str | None = None) -> None:
        super().__init__(redis_url)
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="brimful-fleet")
        self._redis = redis_client(self._url, decode_responses=False)
        self._awaited: dict[str, asyncio.Future[Any]] = {}
        self._poller: asyncio.Task[None] | None = None
        self._new = asyncio.Event()
        self._maps: set[OwnedAsyncGenerator[list[Sampled]]] = set()

    async def sample(
        self, request: Asked, *, timeout: float | None = None, workload: Workload | str | None = None, **fields: Any
    ) -> dict[str, Any]:
        """As :meth:`Fleet.sample`; TimeoutError after ``timeout``. Cancelled or timed out, the request is revoked."""
        handle = await self.submit(request, workload=workload, **fields)
        try:
            async with asyncio.timeout(timeout):
                return await self.result(handle)
        except (asyncio.CancelledError, TimeoutError):
            await asyncio.shield(self.cancel(handle))
            raise

    async def submit(
        self, request: Asked, *, workload: Workload | str | None = None, **fields: Any
    ) -> AsyncResult[Any]:
        """As :meth:`Fleet.submit`; :meth:`result` waits for it."""
        return await self._in_thread(self._send, request, workload, fields)

    async def result(self, handle: AsyncResult[Any] | str) -> dict[str, Any]:
        """A submitted request's Completion. Any number may be awaited at once. Raises as :meth:`Fleet.sample`."""
        id = handle if isinstance(handle, str) else handle.id
        future = self._awaited.setdefault(id, asyncio.get_running_loop().create_future())
        self._new.set()
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll())
        meta = await asyncio.shield(future)
        return _completion(meta)

    async def cancel(self, *handles: AsyncResult[Any] | str) -> None:
        """As :meth:`Fleet.cancel`."""
        await self._in_thread(self._revoke, handles)

    def map(
        self,
        requests: Iterable[Asked] | AsyncIterable[Asked],
        *,
        pack: PackOption | str = "auto",
        workload: Workload | str = Workload.BATCH,
        **fields: Any,
    ) -> AsyncIterator[Sampled]:
        """As :meth:`Fleet.map`; ``requests`` may be an async iterable. Close it (``aclose``) to cancel early."""
        return self._flat(self._map_run(requests, True, pack, workload, fields))

    def as_completed(
        self,
        requests: Iterable[Asked] | AsyncIterable[Asked],
        *,
        pack: PackOption | str = "auto",
        workload: Workload | str = Workload.BATCH,
        **fields: Any,
    ) -> AsyncIterator[Sampled]:
        """As :meth:`map`, but each as soon as it is there."""
        return self._flat(self._map_run(requests, False, pack, workload, fields))

    async def aclose(self) -> None:
        """Ends what is left of maps that were not read to their end."""
        for batches in [one for one in self._maps if not one.running]:
            await batches.aclose()
        if self._poller is not None:
            await cancel_and_wait([self._poller])
        for future in self._awaited.values():
            future.cancel()
        await close_redis_client(self._redis)
        await self._in_thread(self._disconnect)
        self._threads.shutdown(wait=False)

    async def __aenter__(self) -> AsyncFleet:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _flat(self, run: MapRun) -> AsyncIterator[Sampled]:
        batches = OwnedAsyncGenerator(run.batches())
        self._maps.add(batches)
        try:
            async for batch in batches:
                for one in batch:
                    yield one
        finally:
            await batches.aclose()
            self._maps.discard(batches)

    async def _in_thread(self, call: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(call, *arguments))

    async def _poll(self) -> None:
        """One MGET for all that are awaited; Redis being away is sat out."""
        pause = _POLL_S[0]
        backend = self._app.backend
        while self._awaited:
            self._new.clear()
            ids = list(self._awaited)
            answers: list[Any] = [None] * len(ids)
            with contextlib.suppress(RedisError, OSError):
                answers = await self._redis.mget([backend.get_key_for_task(id) for id in ids])
            found = False
            for id, raw in zip(ids, answers, strict=True):
                meta = backend.decode_result(raw) if raw else None
                if meta is None or meta["status"] not in backend.READY_STATES:
                    continue
                found = True
                future = self._awaited.pop(id)
                if not future.done():
                    future.set_result(meta)
            pause = _POLL_S[0] if found else min(1.5 * pause, _POLL_S[1])
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._new.wait(), pause)
                await asyncio.sleep(_POLL_S[0])


def _completion(meta: Mapping[str, Any]) -> dict[str, Any]:
    result = meta["result"]
    if meta["status"] == "SUCCESS":
        return result  # type: ignore[no-any-return]
    if meta["status"] == "REVOKED":
        raise Cancelled("the request was revoked", "cancelled")
    raise result
