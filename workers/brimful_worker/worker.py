"""A brimful worker put together: settings → admission → provider → sampler → the port that task bodies call."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from celery import Task, current_task
from celery.apps import worker as celery_worker
from celery.exceptions import Ignore, Reject

from brimful.config import Settings
from brimful.dispatch.ledger import CLAIM_TTL_S
from brimful.names import Workload, plain_queue
from brimful.outcome import Outcome
from brimful.request import Request, SampleArguments
from brimful.runtime import span_export, tracing
from brimful.state.redis_url import required
from brimful_worker.fleet_process import FleetProcess, open_metrics
from brimful_worker.logs.fields import describe
from brimful_worker.logs.json_format import use_log_format
from brimful_worker.memory_limit import MemoryLimit
from brimful_worker.pool.execution import run_coroutine
from brimful_worker.provider import GIVE_BACK
from brimful_worker.shards.shard import ShardRunner
from brimful_worker.singles.once import Once, Revoked, announce_revoked


class Worker:
    """Implements brimful_worker.pool.process.WorkerPort. Everything except ``run`` is used on the loop."""

    def __init__(self, settings: Settings, name: str) -> None:
        """Raises SettingError for whatever is missing or wrong. Opens nothing."""
        self._settings = settings
        self.stopping = asyncio.Event()
        self._process = FleetProcess(settings, name, concurrency=settings.concurrency, stopping=self.stopping.is_set)
        self._sampler = self._process.sampler
        self._shards = ShardRunner(
            self._sampler.sample,
            required(settings.redis_url),
            name,
            self.stopping,
            lambda fields: Request.parse(fields, settings.profile),
            expires_s=settings.run_expires_s,
            claim_ttl_s=min(CLAIM_TTL_S, settings.visibility_timeout_s * 2 / 3),
        )
        self._once = Once(
            required(settings.redis_url), self.stopping, settings.fleet, float(settings.visibility_timeout_s)
        )
        self._memory = None if settings.worker_max_memory is None else MemoryLimit(settings.worker_max_memory)
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Returns when Redis has been reached, however long that takes; leaves nothing open when cancelled.

        Raises FleetTaken if the fleet is another API key's.
        """
        async with AsyncExitStack() as stack:
            await self._process.start()
            stack.push_async_callback(self._process.aclose)
            if self._memory is not None:
                stack.callback(asyncio.create_task(self._memory.watch()).cancel)
            await stack.enter_async_context(self._shards)
            await stack.enter_async_context(self._once)
            self._stack = stack.pop_all()

    def add(self, command: tuple[Any, ...], answered: Future[Any] | None) -> None:
        self._once.pipeline.add(command, answered)

    async def aclose(self) -> None:
        """Idempotent."""
        await self._stack.aclose()

    def run(self, task: Task, coroutine: Coroutine[Any, Any, Any]) -> Any:
        try:
            return run_coroutine(coroutine)
        except Revoked:
            announce_revoked(task)
            raise Ignore("revoked") from None

    async def sample(self, raw: Any, fields: dict[str, Any]) -> Outcome:
        """A request without a ``workload`` has that of the queue it came through, or else interactive."""
        if "workload" not in fields and not (isinstance(raw, dict) and raw.get("workload")):
            fields = {**fields, "workload": _workload_of_queue()}
        request, key = SampleArguments.parse(raw, fields, self._settings.profile)
        task = current_task
        describe(request_id=task.request.id, task_id=task.request.id)
        with tracing.continued(task.request.get):
            return await self._once.sample(task, key, lambda: self._sample(request, task.request.id))

    async def _sample(self, request: Request, scope: str) -> Outcome:
        """Raises Reject (requeue) if the worker stops before the request is sent."""
        sent = False

        def on_wire(now: bool) -> None:
            nonlocal sent
            sent = now
            if not now and self.stopping.is_set():
                sampling.cancel(GIVE_BACK)

        sampling = asyncio.create_task(self._sampler.sample(request, scope=scope, on_wire=on_wire))
        stopping = asyncio.create_task(self.stopping.wait())
        try:
            await asyncio.wait({sampling, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not sent:
                sampling.cancel(GIVE_BACK)  # no effect if it is done
            return replace(await sampling, id=scope)
        except asyncio.CancelledError:
            revoked = (me := asyncio.current_task()) is not None and me.cancelling()
            if revoked or not self.stopping.is_set():
                raise
            raise Reject("the worker stops", requeue=True) from None
        finally:
            sampling.cancel()
            stopping.cancel()

    async def shard(self, run: str, shard: str, requests: list[dict[str, Any]]) -> dict[str, Any]:
        with tracing.continued(current_task.request.get):
            return await self._shards.run(run, shard, requests)

    def look_at_key(self) -> None:
        """Read the API key's file at once. Callable from any thread and from a signal's handler."""
        self._process.look_at_key()


def assemble(node: str) -> Worker:
    """A worker from the environment, for the Celery node of that name. Opens only the metrics port, if one is set.

    Raises SettingError.
    """
    settings = Settings.load()
    use_log_format(settings, node)
    span_export.set_up("brimful-worker", node)
    port = Worker(settings, node)
    open_metrics(settings)
    _take_hangups(port, settings)
    return port


def _take_hangups(port: Worker, settings: Settings) -> None:
    """Replace Celery's SIGHUP handler, which restarts a worker that is not on a terminal, where another is wanted."""
    handler: Any
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        handler = signal.SIG_IGN  # as nohup wants it
    elif settings.api_key_file is not None:
        handler = lambda *_: port.look_at_key()  # noqa: E731
    else:
        return
    celery_worker.install_worker_restart_handler = lambda *_, **__: signal.signal(signal.SIGHUP, handler)


def _workload_of_queue() -> str:
    delivery = current_task.request.delivery_info or {}
    queue = plain_queue(str(delivery.get("routing_key")))
    return queue if queue == Workload.BATCH.value else Workload.INTERACTIVE.value
