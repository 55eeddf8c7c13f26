"""The asyncio client. Celery's own calls block, so they run in threads; one task polls for all awaited results.

Private parts of celery 5.7.0:
    celery.backends.redis.RedisBackend: on_task_call
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from celery.result import AsyncResult
from celery.utils import uuid

from brimful.client.arguments import check_timeout
from brimful.client.base import Client, check_names, timed_out
from brimful.client.group import GroupOptions, GroupPack, Stragglers
from brimful.client.group_run import AsyncGroups
from brimful.client.mapping import Asked, MapRun, Sampled
from brimful.names import Workload
from brimful.runtime import fork
from brimful.runtime.aio import OwnedAsyncGenerator, cancel_and_wait
from brimful.runtime.port import in_process
from brimful.state.redis_retry import REDIS_ERRORS
from brimful.state.redis_url import close_redis_client, redis_client
from brimful.state.result_consumer import read_result, revoked
from brimful.tasks import Handle

_POLL_S = (0.02, 0.25)
"""First and longest pause between polls. One poll asks for all awaited results."""
_CHUNK = 200
"""Results that one command asks for."""
_RUNNING = b'{"status": "STARTED"'
"""How the state of a task that runs begins, as Celery's backend stores it."""


@dataclass(eq=False)
class _Awaited:
    """A result that is awaited."""

    key: Any
    """In Redis."""
    meta: asyncio.Future[Any]
    by: int = 0
    """How many callers wait for it."""


class AsyncFleet(Client[AsyncGenerator[Sampled, None]]):
    """A fleet of workers, for asyncio; :class:`brimful.Fleet` is the same for code that blocks.

    ::

        async with AsyncFleet() as fleet:                        # BRIMFUL_REDIS_URL, or AsyncFleet("redis://…")
            completion = await fleet.sample("The sky is", max_tokens=8)
            async for one in fleet.map(prompts, max_tokens=8, n=4):
                print(one.texts)

    To cancel a map early, close it: ``async with contextlib.aclosing(fleet.map(…)) as results: …``. For use on one
    event loop. Connects when first used; waits for a Redis that becomes unreachable while results are awaited. Raises
    SettingError without a URL.
    """

    def __init__(self, redis_url: str | None = None, *, fleet: str | None = None) -> None:
        super().__init__(redis_url, fleet=fleet)
        # Celery would subscribe to each task's result, and nobody would read the messages.
        self._app.backend.on_task_call = lambda *_: None
        self._open()

    def _open(self) -> None:
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="brimful-fleet")
        self._redis = redis_client(self._url, decode_responses=False)
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        """That on which results are awaited."""
        self._awaited: dict[str, _Awaited] = {}
        self._poller: asyncio.Task[None] | None = None
        self._new = asyncio.Event()
        self._maps: set[OwnedAsyncGenerator[list[Sampled]]] = set()
        self._groups: set[AsyncGroups] = set()

    def after_fork(self) -> None:
        fork.keep_inherited(self._threads, self._redis, self._awaited, self._poller, self._maps, self._groups)
        self._open()

    async def sample(
        self,
        request: Asked,
        *,
        timeout: float | None = None,
        workload: Workload | str | None = None,
        idempotency_key: str | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """As :meth:`Fleet.sample`. If it is cancelled, so is the request."""
        check_timeout(timeout)
        check_names(request, fields)
        self._check_loop()
        id = uuid()
        try:
            async with asyncio.timeout(timeout):
                return await self.result(
                    await self._in_thread(self._send, request, workload, fields, id, idempotency_key)
                )
        except (asyncio.CancelledError, TimeoutError) as error:
            await asyncio.shield(self._in_thread(self._abandon, id))
            if isinstance(error, TimeoutError):
                raise timed_out(timeout) from None
            raise

    async def submit(
        self,
        request: Asked,
        *,
        workload: Workload | str | None = None,
        task_id: str | None = None,
        idempotency_key: str | None = None,
        **fields: Any,
    ) -> Handle:
        """As :meth:`Fleet.submit`; :meth:`result` waits for the completion."""
        check_names(request, fields)
        sent: Handle = await self._in_thread(self._send, request, workload, fields, task_id, idempotency_key)
        return sent

    async def result(self, handle: Handle | AsyncResult[Any] | str) -> dict[str, Any]:
        """Wait for the completion of a submitted request (its handle or task id). Any number may be awaited at once.

        Raises brimful.errors.BadRequest and SampleError, as :meth:`Fleet.sample`, and RuntimeError once the fleet is
        closed, or on another event loop than before.
        """
        id = handle if isinstance(handle, str) else handle.id
        if (backend := in_process()) is not None:
            return await _completion(asyncio.wrap_future(backend.future(id)))
        if self._closed:
            raise RuntimeError("the fleet is closed: open another to wait for results")
        self._check_loop()
        key = self._app.backend.get_key_for_task(id)  # fails for an odd id, which must not end the poller
        awaiting = self._awaited.setdefault(id, _Awaited(key, asyncio.get_running_loop().create_future()))
        awaiting.by += 1
        self._new.set()
        if self._poller is None or self._poller.done():
            self._poller = asyncio.create_task(self._poll())
        try:
            meta = await asyncio.shield(awaiting.meta)
        finally:
            awaiting.by -= 1
            if not awaiting.by and self._awaited.get(id) is awaiting:
                del self._awaited[id]  # else it would be polled for as long as no worker skips it
        if meta["status"] == "REVOKED":
            raise revoked()
        if meta["status"] != "SUCCESS":
            raise meta["result"]
        completion: dict[str, Any] = meta["result"]
        return completion

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
    ) -> AsyncGroups:
        """Sample n times each of many prompts, and iterate over one :class:`Group` for each, as it becomes full.

        ::

            async with fleet.group(prompts, n=8, deadline_s=60, max_tokens=256) as groups:
                async for group in groups:
                    train(group.prompt, group.texts)

        Sampling begins with the ``async with``, and so do the ``deadline_s`` seconds (None: no deadline). At the
        deadline the groups that are not full are yielded too, with what they have and, in ``missing``, each sample that
        did not come; ``stragglers="drop"`` puts them into ``groups.dropped`` instead. What had not ended is cancelled,
        as is everything when the block is left: a call in progress is closed within about a second.

        ``oversample=k`` asks for n + k samples of each prompt; the first n make its group, the others are cancelled.
        ``pack``: whether a group's samples are one request with ``n`` choices: ``"auto"`` where they would queue for
        slots and a request of n choices is not slower than n requests, ``"group"`` always, ``"off"`` never.
        ``prompts``: one prompt each, without ``n``; they are read at once. With a ``seed``, sample i of a prompt has
        ``seed + i``. Other parameters as in :meth:`map`.

        A sample that failed is in ``missing``, and its group is yielded once no further sample can come. Raises
        SettingError and BadRequest for arguments that are out of range; iterating raises what :meth:`map` raises.
        """
        options = GroupOptions(n, deadline_s, oversample, stragglers, pack)
        run = self._group_run(prompts, options, workload, weight, fields)
        return AsyncGroups(run, self._groups)

    async def cancel(self, *handles: Handle | AsyncResult[Any] | str) -> None:
        """As :meth:`Fleet.cancel`."""
        await self._in_thread(self._revoke, handles)

    async def aclose(self) -> None:
        """Cancel maps and groups that were not read to their end, and disconnect."""
        self._closed = True
        for groups in list(self._groups):
            await groups.aclose()
        for batches in [one for one in self._maps if not one.running]:
            await batches.aclose()
        if self._poller is not None:
            await cancel_and_wait([self._poller])
        for awaiting in self._awaited.values():
            awaiting.meta.cancel()
        await close_redis_client(self._redis)
        await self._in_thread(self._disconnect)
        self._threads.shutdown(wait=False)

    async def __aenter__(self) -> AsyncFleet:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _results(self, run: MapRun) -> AsyncGenerator[Sampled, None]:
        batches = OwnedAsyncGenerator(run.batches())
        self._maps.add(batches)
        try:
            async for batch in batches:
                for one in batch:
                    yield one
        finally:
            if not batches.running:  # else ``aclose`` ends it at this moment
                await batches.aclose()
            self._maps.discard(batches)

    def _check_loop(self) -> None:
        """Raises RuntimeError on a second event loop: its requests would wait for the first one's connection."""
        if in_process() is not None:
            return
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            raise RuntimeError("an AsyncFleet awaits results on one event loop only: open another on this one")
        self._loop = loop

    async def _in_thread(self, call: Any, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(call, *arguments))

    async def _poll(self) -> None:
        """Resolve the futures of results that are there; ends when none is awaited."""
        pause, clock = _POLL_S[0], asyncio.get_running_loop().time
        while self._awaited:
            self._new.clear()
            asked, began = list(self._awaited.items()), clock()
            ended = [await self._look(asked[place : place + _CHUNK]) for place in range(0, len(asked), _CHUNK)]
            pause = _POLL_S[0] if any(ended) else min(1.5 * pause, _POLL_S[1])
            pause = max(pause, clock() - began)  # a look at thousands of results takes long
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._new.wait(), pause)
                await asyncio.sleep(pause)

    async def _look(self, asked: list[tuple[str, _Awaited]]) -> bool:
        """Resolve the futures of those results that are there, with one MGET. Returns whether any was."""
        backend = self._app.backend
        try:
            answers: list[Any] = await self._redis.mget([awaiting.key for _, awaiting in asked])
        except REDIS_ERRORS:
            return False
        found = False
        for (id, _), raw in zip(asked, answers, strict=True):
            if not raw or raw.startswith(_RUNNING):
                continue
            meta = read_result(backend, id, raw)
            if meta["status"] in backend.READY_STATES:
                found = True
                awaiting = self._awaited.pop(id, None)
                if awaiting is not None and not awaiting.meta.done():
                    awaiting.meta.set_result(meta)
        return found


async def _completion(future: asyncio.Future[dict[str, Any]]) -> dict[str, Any]:
    """Of a test's backend, whose future is cancelled when the request is revoked."""
    await asyncio.wait([future])
    if future.cancelled():
        raise revoked()
    return future.result()
