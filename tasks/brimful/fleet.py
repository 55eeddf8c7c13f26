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
import contextlib
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult
from kombu.exceptions import OperationalError
from redis import RedisError

from brimful.aio import Held, end
from brimful.celery import app_for
from brimful.config import Settings
from brimful.errors import Cancelled, RedisUnreachable
from brimful.mapping import Asked, MapRun, Sampled
from brimful.names import TASK_SAMPLE, Workload
from brimful.redis_url import redis_client, required, without_password
from brimful.request import Request
from brimful.run.units import PackOption, parse_pack

_T = TypeVar("_T")
_POLL_S = (0.02, 0.25)
"""First and longest pause between looks for results; one look asks for all that are awaited."""


class _Client:
    """What both kinds share: settings, and single requests as Celery tasks."""

    def __init__(self, redis_url: str | None = None) -> None:
        """``redis_url`` None: BRIMFUL_REDIS_URL. Nothing is connected before it is used. Raises SettingError."""
        self._settings = Settings.load(redis_url=redis_url)
        self._url = required(self._settings.redis_url)
        self._app = app_for(self._url)
        self._reached = False

    def _send(self, request: Asked, workload: Workload | str | None, fields: Mapping[str, Any]) -> AsyncResult[Any]:
        """Raises RedisUnreachable."""
        raw = request.as_message() if isinstance(request, Request) else request
        queue = Workload(workload or Workload.INTERACTIVE).value
        try:
            if not self._reached:
                self._reach()
            sent = self._app.send_task(TASK_SAMPLE, args=[raw], kwargs={**fields, "workload": queue}, queue=queue)
        except (OperationalError, RedisError, OSError, RuntimeError) as error:  # RuntimeError: celery's result backend
            raise RedisUnreachable(
                f"cannot enqueue at {without_password(self._url)}: {error}; is BRIMFUL_REDIS_URL right, and Redis up?"
            ) from None
        return sent

    def _reach(self) -> None:
        """Once, so that a wrong URL is told at once: Celery's result backend would try for long."""
        with self._app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, interval_start=0)
            connection.default_channel.client.ping()
        self._reached = True

    def _disconnect(self) -> None:
        """Celery's connections, of which it keeps some for each purpose."""
        with contextlib.suppress(Exception):  # they are ours to throw away
            consumer = self._app.backend.result_consumer
            consumer.stop()
            consumer._pubsub = None  # else a handle that is dropped later would connect anew, to unsubscribe
            self._app.backend.client.connection_pool.disconnect()
        with contextlib.suppress(Exception):
            self._app.close()

    def _revoke(self, handles: Iterable[AsyncResult[Any] | str]) -> None:
        ids = [handle if isinstance(handle, str) else handle.id for handle in handles]
        if ids:
            self._app.control.revoke(ids, terminate=True)

    def _map_run(
        self,
        requests: Iterable[Asked] | AsyncIterable[Asked],
        ordered: bool,
        pack: PackOption | str,
        workload: Workload | str,
        fields: Mapping[str, Any],
    ) -> MapRun:
        return MapRun(
            requests,
            self._settings,
            pack=parse_pack(pack),
            workload=Workload(workload),
            ordered=ordered,
            fields=fields,
        )


class Fleet(_Client):
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


class AsyncFleet(_Client):
    """For asyncio; use it on one loop, and ``aclose()`` it or use it as an async context manager."""

    def __init__(self, redis_url: str | None = None) -> None:
        super().__init__(redis_url)
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="brimful-fleet")
        self._redis = redis_client(self._url, decode_responses=False)
        self._awaited: dict[str, asyncio.Future[Any]] = {}
        self._poller: asyncio.Task[None] | None = None
        self._new = asyncio.Event()
        self._maps: set[Held[list[Sampled]]] = set()

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
            await end([self._poller])
        for future in self._awaited.values():
            future.cancel()
        await self._redis.aclose()
        await self._in_thread(self._disconnect)
        self._threads.shutdown(wait=False)

    async def __aenter__(self) -> AsyncFleet:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _flat(self, run: MapRun) -> AsyncIterator[Sampled]:
        batches = Held(run.batches())
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


def _result(handle: AsyncResult[Any], timeout: float | None) -> dict[str, Any]:
    try:
        completion: dict[str, Any] = handle.get(timeout=timeout)
    except TaskRevokedError:
        raise Cancelled("the request was revoked", "cancelled") from None
    return completion


def _completion(meta: Mapping[str, Any]) -> dict[str, Any]:
    result = meta["result"]
    if meta["status"] == "SUCCESS":
        return result  # type: ignore[no-any-return]
    if meta["status"] == "REVOKED":
        raise Cancelled("the request was revoked", "cancelled")
    raise result


class _Map:
    """One map of a Fleet, on its loop."""

    def __init__(self, make: Callable[[], MapRun]) -> None:
        self._make = make
        self._batches: Held[list[Sampled]] | None = None
        self._reading: asyncio.Task[Any] | None = None

    async def next(self) -> list[Sampled] | None:
        if self._batches is None:
            self._batches = Held(self._make().batches())
        self._reading = asyncio.current_task()
        try:
            return await anext(self._batches, None)
        finally:
            self._reading = None

    async def aclose(self) -> None:
        if self._reading is not None:  # in another thread of the caller's
            await end([self._reading])
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
            await end([task for task in asyncio.all_tasks() if task is not mine])
            await self._loop.shutdown_asyncgens()

        self.run(rest())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
