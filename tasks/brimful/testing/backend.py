"""A backend that answers in the test's own process, in place of Redis, workers and provider.

While it is open, ``brimful.sample`` runs eagerly (``delay``, ``apply_async``, Celery's canvas), and every Fleet and
AsyncFleet is answered by it, whatever their URL is. One at a time.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from contextlib import AsyncExitStack
from typing import Any, Self

from celery import Task

from brimful import tasks
from brimful.celery import app
from brimful.config import Settings
from brimful.errors import NoWorker, SampleError
from brimful.outcome import Outcome
from brimful.request import Request, SampleArguments
from brimful.runtime import port
from brimful.runtime.aio import cancel_and_wait
from brimful.runtime.extras import worker_module
from brimful.testing import answers
from brimful.testing.answers import Answer
from brimful.testing.result import PendingResult

_EAGER = {"task_always_eager": True, "broker_url": "memory://", "result_backend": "cache+memory://"}


class Backend:
    """``with Backend(lambda request: "Blue.") as backend: …``"""

    def __init__(self, answer: Answer | None = None, **settings: Any) -> None:
        """``answer`` may be set later too; without one every text is ``"text"``. ``settings`` are Settings' fields, as
        ``provider``. Raises SettingError."""
        self.answer: Answer = answer or (lambda request: "text")
        self.requests: list[Request] = []
        """All requests so far, in the order in which they came."""
        self._settings = Settings.load(**settings)
        self._sample: Callable[[Request], Awaitable[Outcome]] = self._answered
        self._futures: dict[str, Future[Any]] = {}
        self._awaited: dict[str, Future[Any]] = {}
        """By id: of requests whose result was asked for before they were submitted. Each is done with the request's own
        future then."""
        self._once: dict[str, asyncio.Task[Outcome]] = {}
        self._stack = AsyncExitStack()

    def use_gateway(self, **options: Any) -> Any:
        """Answer from the mock gateway from now on, and return it (``brimful_worker.gateway.Gateway``).

        ``options`` are fields of GatewayOptions, as ``faults="500:0.1"`` or ``latency_s=0.2``. Requests go through the
        worker's sampler, so that retries and failures are real. Raises UsageError without ``brimful[worker]``.
        """
        provider = worker_module("in_process", "the mock gateway").mock_provider(self._settings, options)
        gateway, self._sample = self.start(self._stack.enter_async_context(provider)).result()
        return gateway

    # -- for brimful's clients and tasks: brimful.runtime.port.InProcess

    def run(self, task: Task, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.start(coroutine).result()

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    async def sample(self, raw: Any, fields: dict[str, Any]) -> Outcome:
        request, key = SampleArguments.parse(raw, fields, self._settings.profile)
        if key is None:
            return await self._recorded(request)
        first = self._once.get(key)
        if first is None or (first.done() and _failed(first)):
            first = self._once[key] = asyncio.create_task(self._recorded(request))
        return await asyncio.shield(first)

    async def shard(self, run: str, shard: str, requests: list[dict[str, Any]]) -> dict[str, Any]:
        raise NoWorker("brimful.testing answers requests, not shards")

    def submit(self, raw: Any, fields: Mapping[str, Any], task_id: str | None) -> PendingResult:
        id = task_id or uuid.uuid4().hex
        known = self._futures.get(id)
        if known is None or (known.done() and not known.cancelled() and known.exception() is not None):
            self._futures[id] = self.start(tasks.sample.run(raw, **fields))
        elif (awaited := self._awaited.pop(id, None)) and not known.done():
            awaited.set_result(self.start(tasks.sample.run(raw, **fields)))
        return PendingResult(id, self._futures[id], lambda id: self.cancel([id]))

    def cancel(self, ids: Iterable[str]) -> None:
        for id in ids:
            if id in self._futures:
                self._futures[id].cancel()

    def future(self, id: str) -> Future[Any]:
        """Of a request that was submitted, or will be."""
        if id not in self._futures:
            self._awaited[id] = Future()
            self._futures[id] = self.start(_result_of(self._awaited[id]))
        return self._futures[id]

    # -- life

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="brimful-testing", daemon=True)
        self._thread.start()
        self._conf = {name: app.conf[name] for name in _EAGER}
        app.conf.update(_EAGER)
        port.bind(self)
        port.bind_in_process(self)
        return self

    def __exit__(self, *_: object) -> None:
        port.bind_in_process(None)
        port.bind(None)
        app.conf.update(self._conf)
        self.start(self._close()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        mine = asyncio.current_task()
        await cancel_and_wait([task for task in asyncio.all_tasks() if task is not mine])
        await self._stack.aclose()

    # -- answers

    async def _recorded(self, request: Request) -> Outcome:
        self.requests.append(request)
        return await self._sample(request)

    async def _answered(self, request: Request) -> Outcome:
        try:
            # If this were cancelled while a thread makes the coroutine, that would never be awaited.
            waits = inspect.iscoroutinefunction(self.answer)
            returned = self.answer(request) if waits else await asyncio.to_thread(self.answer, request)
            if inspect.isawaitable(returned):
                returned = await returned
        except SampleError as error:
            return Outcome(request.id, failure=answers.failure(error), attempts=1)
        return answers.outcome(request, returned)


async def _result_of(submitted: Future[Any]) -> Any:
    return await asyncio.wrap_future(await asyncio.wrap_future(submitted))


def _failed(first: asyncio.Task[Outcome]) -> bool:
    return first.cancelled() or first.exception() is not None or not first.result().ok
