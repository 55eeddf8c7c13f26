"""The blocking client: a fleet of brimful workers, from any Python process, with the plain install."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Generator, Iterable, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

from celery.exceptions import TimeoutError as CeleryTimeout
from celery.result import AsyncResult
from celery.utils import uuid

from brimful.client.arguments import check_timeout
from brimful.client.base import Client, check_names, timed_out
from brimful.client.group import Group, GroupOptions, GroupPack, Stragglers
from brimful.client.group_run import AsyncGroups
from brimful.client.mapping import Asked, MapRun, Sampled
from brimful.errors import BrimfulError
from brimful.names import Workload
from brimful.runtime import fork
from brimful.runtime.aio import OwnedAsyncGenerator, cancel_and_wait
from brimful.state.result_consumer import end_waits
from brimful.tasks import Handle

_T = TypeVar("_T")


class Fleet(Client[Generator[Sampled, None, None]]):
    """A fleet of workers, for code that blocks; :class:`brimful.AsyncFleet` is the same for asyncio.

    ::

        with Fleet() as fleet:                                   # BRIMFUL_REDIS_URL, or Fleet("redis://…")
            fleet.sample("The sky is", max_tokens=8)["choices"][0]["text"]
            for one in fleet.map(prompts, max_tokens=8, n=4):    # in order; as_completed: as they come
                print(one.texts)

    A single request is the Celery task ``brimful.sample``. A map packs many prompts into one call to the provider, and
    sends them as a run does. Safe to share among threads. Connects when first used. Raises SettingError without a URL.
    """

    def __init__(self, redis_url: str | None = None, *, fleet: str | None = None) -> None:
        super().__init__(redis_url, fleet=fleet)
        self._loop: _LoopThread | None = None
        self._lock = threading.Lock()
        self._waiting: set[str] = set()
        """Ids of the requests that ``sample`` waits for."""

    def after_fork(self) -> None:
        fork.keep_inherited(self._loop)
        self._loop, self._lock, self._waiting = None, threading.Lock(), set()

    def sample(
        self,
        request: Asked,
        *,
        timeout: float | None = None,
        workload: Workload | str | None = None,
        idempotency_key: str | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """Sample one request and wait for the provider's completion: a dict, whose ``brimful`` says what it took.

        ``request`` and ``fields`` are those of :data:`brimful.sample`; ``workload`` is ``interactive`` by default.
        ``timeout`` is in seconds; None waits without end. A request that times out, or whose wait is interrupted, is
        cancelled. ``idempotency_key``: requests with the same key are sampled once, and all get the completion; one
        that failed is sampled again.

        Raises brimful.errors.BadRequest for a request that the provider would refuse, SampleTimeout (a TimeoutError),
        another SampleError for one that failed (Cancelled if it was revoked), and RedisUnreachable.
        """
        check_timeout(timeout)
        check_names(request, fields)
        id, waiting = uuid(), self._waiting
        waiting.add(id)
        try:
            handle = self._send(request, workload, fields, id, idempotency_key)
            try:
                completion: dict[str, Any] = handle.get(timeout=timeout)
            finally:
                if handle.backend is not None:  # Celery keeps a handle whose wait timed out
                    handle.backend.remove_pending_result(handle)
        except BrimfulError:
            raise
        except CeleryTimeout:
            self._abandon(id)
            raise timed_out(timeout) from None
        except BaseException:
            self._abandon(id)
            raise
        finally:
            waiting.discard(id)
            if waiting is not self._waiting:  # closed meanwhile; this thread may have connected again
                self._disconnect()
        return completion

    def submit(
        self,
        request: Asked,
        *,
        workload: Workload | str | None = None,
        task_id: str | None = None,
        idempotency_key: str | None = None,
        **fields: Any,
    ) -> Handle:
        """Enqueue one request, as :meth:`sample` does, and return its Celery handle without waiting.

        ``handle.get(timeout=…)`` waits for the completion, and raises what :meth:`sample` raises (Cancelled is
        celery's TaskRevokedError too), but celery's TimeoutError, which leaves it running. ``task_id`` is the
        handle's id; a second request with the id of one that succeeded is not sampled. Raises RedisUnreachable.
        """
        check_names(request, fields)
        return self._send(request, workload, fields, task_id, idempotency_key)

    def group(
        self,
        prompts: Iterable[Asked],
        *,
        n: int,
        deadline_s: float | None = None,
        oversample: int = 0,
        stragglers: Stragglers = "wait",
        pack: GroupPack = "auto",
        workload: Workload | str = Workload.BATCH,
        weight: float | None = None,
        **fields: Any,
    ) -> Groups:
        """As :meth:`brimful.AsyncFleet.group`, with ``with`` and ``for``.

        ``with fleet.group(prompts, n=8, deadline_s=60) as groups: train_on(group.texts for group in groups)``
        """
        options = GroupOptions(n, deadline_s, oversample, stragglers, pack)
        run = self._group_run(prompts, options, workload, weight, fields)
        return Groups(AsyncGroups(run), self._loop_thread())

    def cancel(self, *handles: Handle | AsyncResult[Any] | str) -> None:
        """Revoke submitted requests (handles or task ids). A call in progress is closed within about a second.

        What waits is never sampled, even if no worker is up now: a revocation is kept for a week. Raises
        RedisUnreachable.
        """
        self._revoke(handles)

    def close(self) -> None:
        """Cancel maps that were not read to their end, and what other threads wait for, and disconnect. Idempotent.

        A ``sample`` in another thread raises Cancelled within about a second.
        """
        with self._lock:
            loop, self._loop = self._loop, None
            waiting, self._waiting = tuple(self._waiting), set()
        if loop is not None:
            loop.close()
        if waiting:
            self._abandon(*waiting)
            end_waits(self._app.backend, waiting)
        self._disconnect()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _results(self, run: MapRun) -> Generator[Sampled, None, None]:
        loop = self._loop_thread()
        map = _Map(run)
        loop.maps.add(map)
        try:
            while (batch := loop.run(map.next())) is not None:
                yield from batch
        finally:
            loop.end(map)

    def _loop_thread(self) -> _LoopThread:
        with self._lock:
            if self._loop is None:
                self._loop = _LoopThread()
            return self._loop


class Groups:
    """What ``Fleet.group`` returns: a context manager, and an iterator of :class:`Group`."""

    def __init__(self, groups: AsyncGroups, loop: _LoopThread) -> None:
        self._groups = groups
        self._loop = loop

    @property
    def dropped(self) -> list[Group]:
        """As :attr:`AsyncGroups.dropped`."""
        return self._groups.dropped

    def __enter__(self) -> Self:
        self._loop.maps.add(self._groups)
        self._loop.run(self._groups.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.end(self._groups)

    def __iter__(self) -> Iterator[Group]:
        while (group := self._loop.run(self._groups.next())) is not None:
            yield group


class _Map:
    """One map of a Fleet, on its loop."""

    def __init__(self, run: MapRun) -> None:
        self._batches = OwnedAsyncGenerator(run.batches())
        self._reading: asyncio.Task[Any] | None = None

    async def next(self) -> list[Sampled] | None:
        self._reading = asyncio.current_task()
        try:
            return await anext(self._batches, None)
        finally:
            self._reading = None

    async def aclose(self) -> None:
        if self._reading is not None:  # for another thread of the caller's
            await cancel_and_wait([self._reading])
        await self._batches.aclose()


class _LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.maps: set[_Map | AsyncGroups] = set()
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="brimful-map", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        if not self._thread.is_alive():
            coroutine.close()
            raise RuntimeError("the fleet was closed, or the map was begun before a fork")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def end(self, map: _Map | AsyncGroups) -> None:
        if map in self.maps and self._pid == os.getpid():  # else close() has ended it, or it is the parent's
            self.maps.discard(map)
            self.run(map.aclose())

    def close(self) -> None:
        async def end_all() -> None:
            while self.maps:
                await self.maps.pop().aclose()
            mine = asyncio.current_task()
            await cancel_and_wait([task for task in asyncio.all_tasks() if task is not mine])
            await self._loop.shutdown_asyncgens()

        self.run(end_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
