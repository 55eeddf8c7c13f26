"""The client: a fleet of brimful workers, from any Python process, with the plain install.

::

    fleet = Fleet()                                   # BRIMFUL_REDIS_URL, or Fleet("redis://…")
    fleet.sample("The sky is", max_tokens=8)["choices"][0]["text"]
    for one in fleet.map(prompts, max_tokens=8, n=4): # packed, in order; as_completed: as they come
        print(one.texts)

:class:`AsyncFleet` has the same methods as coroutines and async iterators. A single request is the Celery task
``brimful.sample``, ``interactive`` unless told otherwise; a map goes in shards, as a run does, ``batch`` unless told
otherwise.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult

from brimful.client.base import Client
from brimful.client.fleet_async import AsyncFleet
from brimful.client.mapping import Asked, MapRun, Sampled
from brimful.errors import Cancelled
from brimful.names import Workload
from brimful.packing.units import PackOption
from brimful.runtime.aio import OwnedAsyncGenerator, cancel_and_wait

__all__ = ["AsyncFleet", "Fleet"]

_T = TypeVar("_T")


class Fleet(Client):
    """For code that blocks. Safe to share among threads; ``close()`` it, or use it as a context manager."""

    def __init__(self, redis_url: str | None = None) -> None:
        super().__init__(redis_url)
        self._loop: _LoopThread | None = None
        self._lock = threading.Lock()

    def sample(
        self, request: Asked, *, timeout: float | None = None, workload: Workload | str | None = None, **fields: Any
    ) -> dict[str, Any]:
        """The provider's Completion for one request; what it took is under its ``brimful``.

        ``fields`` are any of the request's (``n``, ``max_tokens``, …). Raises brimful.errors.SampleError,
        BadRequest, RedisUnreachable, and celery.exceptions.TimeoutError after ``timeout`` seconds.
        """
        return _result(self.submit(request, workload=workload, **fields), timeout)

    def submit(self, request: Asked, *, workload: Workload | str | None = None, **fields: Any) -> AsyncResult[Any]:
        """Enqueue one request; ``handle.get()`` waits for its Completion. Raises RedisUnreachable."""
        return self._send(request, workload, fields)

    def cancel(self, *handles: AsyncResult[Any] | str) -> None:
        """End submitted requests, queued or running; a running one's connection is closed within about a second."""
        self._revoke(handles)

    def map(
        self,
        requests: Iterable[Asked],
        *,
        pack: PackOption | str = "auto",
        workload: Workload | str = Workload.BATCH,
        **fields: Any,
    ) -> Iterator[Sampled]:
        """What became of each request, in their order. ``fields`` are defaults; a request's own beat them.

        ``requests`` may be endless: it is read (in another thread) as there is room, and results are held only where
        an earlier one is still awaited. Leaving the loop cancels what is under way. A failed request is a Sampled
        with a ``failure`` (``ok`` is False): the loop goes on, and only its ``texts``, ``text`` and ``check()`` raise.
        Raises RedisUnreachable where Redis does not answer from the beginning.
        """
        return self._iterate(self._map_run, requests, True, pack, workload, fields)

    def as_completed(
        self,
        requests: Iterable[Asked],
        *,
        pack: PackOption | str = "auto",
        workload: Workload | str = Workload.BATCH,
        **fields: Any,
    ) -> Iterator[Sampled]:
        """As :meth:`map`, but each as soon as it is there; ``index`` tells which."""
        return self._iterate(self._map_run, requests, False, pack, workload, fields)

    def close(self) -> None:
        """Ends what is left of maps that were not read to their end, also of one that an exception still holds.
        Idempotent."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()
        self._disconnect()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _iterate(self, make: Any, *arguments: Any) -> Iterator[Sampled]:
        with self._lock:
            if self._loop is None:
                self._loop = _LoopThread()
            loop = self._loop

        map = _Map(partial(make, *arguments))
        loop.maps.add(map)
        try:
            while (batch := loop.run(map.next())) is not None:
                yield from batch
        finally:
            loop.end(map)


def _result(handle: AsyncResult[Any], timeout: float | None) -> dict[str, Any]:
    try:
        completion: dict[str, Any] = handle.get(timeout=timeout)
    except TaskRevokedError:
        raise Cancelled("the request was revoked", "cancelled") from None
    return completion


class _Map:
    """One map of a Fleet, on its loop."""

    def __init__(self, make: Callable[[], MapRun]) -> None:
        self._make = make
        self._batches: OwnedAsyncGenerator[list[Sampled]] | None = None
        self._reading: asyncio.Task[Any] | None = None

    async def next(self) -> list[Sampled] | None:
        if self._batches is None:
            self._batches = OwnedAsyncGenerator(self._make().batches())
        self._reading = asyncio.current_task()
        try:
            return await anext(self._batches, None)
        finally:
            self._reading = None

    async def aclose(self) -> None:
        if self._reading is not None:  # in another thread of the caller's
            await cancel_and_wait([self._reading])
        if self._batches is not None:
            await self._batches.aclose()


class _LoopThread:
    """An event loop for code that has none."""

    def __init__(self) -> None:
        self.maps: set[_Map] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="brimful-map", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        if not self._thread.is_alive():
            coroutine.close()
            raise RuntimeError("the fleet was closed")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def end(self, map: _Map) -> None:
        """A map that :meth:`close` has ended already needs nothing."""
        if map in self.maps:
            self.maps.discard(map)
            self.run(map.aclose())

    def close(self) -> None:
        async def rest() -> None:
            while self.maps:
                await self.maps.pop().aclose()
            mine = asyncio.current_task()
            await cancel_and_wait([task for task in asyncio.all_tasks() if task is not mine])
            await self._loop.shutdown_asyncgens()

        self.run(rest())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
