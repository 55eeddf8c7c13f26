"""A brimful worker put together: settings → admission → provider → sampler → the port that task bodies call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

from celery import Task, current_task
from celery.exceptions import Reject
from redis import RedisError

from brimful.config import Settings
from brimful.names import Workload
from brimful.outcome import Outcome
from brimful.request import Request
from brimful.state.redis_url import required
from brimful_worker.admission import Admission
from brimful_worker.broker.requests import poison_failure
from brimful_worker.liveness.pulse import Pulse
from brimful_worker.metrics import catalogue as metrics
from brimful_worker.pool.execution import run_coroutine
from brimful_worker.provider import GIVE_BACK, Provider
from brimful_worker.sampling.sampler import Sampler
from brimful_worker.shards.shard import ShardRunner

log = logging.getLogger(__name__)

_STATUS_S = 5.0


class WorkerPort:
    """Implements brimful.runtime.port.Port. Everything but ``run`` and ``parse`` is used on the loop."""

    def __init__(self, settings: Settings, name: str) -> None:
        """Raises SettingError for whatever is missing or wrong; opens nothing."""
        self._settings = settings
        self._name = name
        self._profile = settings.profile
        self.stopping = asyncio.Event()
        self._admission = Admission.from_settings(settings, name=name)
        self._provider = Provider(settings)
        self._sampler = Sampler(settings, self._admission, self._provider, stopping=self.stopping.is_set)
        self._shards = ShardRunner(
            self._sampler, required(settings.redis_url), name, self.stopping, parse=self._parse_one
        )
        self._open: AsyncExitStack | None = None

    async def start(self) -> None:
        """Returns when Redis has been reached, however long that takes; leaves nothing open when cancelled."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._provider)
            if self._settings.guardian:
                pulse = Pulse(lambda: self._admission.patience_s)
                pulse.start()
                stack.push_async_callback(asyncio.to_thread, pulse.stop)
            if metrics.serving():  # before Redis is waited for: its absence is no reason to restart a worker
                for told in (metrics.heartbeat(), self._tell_metrics()):
                    stack.callback(asyncio.create_task(told).cancel)
            stack.push_async_callback(self._admission.aclose)
            await self._admission.start(timeout_s=None)
            await stack.enter_async_context(self._shards)
            self._open = stack.pop_all()

    async def aclose(self) -> None:
        if self._open is not None:
            stack, self._open = self._open, None
            await stack.aclose()

    def run(self, task: Task, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return run_coroutine(coroutine)

    def parse(self, raw: Any, fields: dict[str, Any]) -> Request:
        """``workload``, where the request names none, is that of the queue it came through; else interactive."""
        fields = dict(fields)
        if "workload" not in fields and not (isinstance(raw, dict) and raw.get("workload")):
            fields["workload"] = _workload_of_queue()
        return Request.parse({} if raw is None else raw, self._profile, **fields)

    async def sample(self, request: Request) -> Outcome:
        task = current_task.request if current_task else None
        failure = poison_failure(task.__dict__) if task is not None else None
        if failure is not None:
            return Outcome(request.id, failure=failure, worker=self._name)
        return await self._unless_stopping(request, task.id if task is not None else "")

    async def _unless_stopping(self, request: Request, scope: str) -> Outcome:
        """Sample. When the worker stops, what is on the wire ends, and what only waits goes to another (Reject)."""
        flying = False

        def on_wire(now: bool) -> None:
            nonlocal flying
            flying = now
            if not now and self.stopping.is_set():
                sampling.cancel(GIVE_BACK)

        sampling = asyncio.create_task(self._sampler.sample(request, scope=scope, on_wire=on_wire))
        stopping = asyncio.create_task(self.stopping.wait())
        try:
            await asyncio.wait({sampling, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not flying:
                sampling.cancel(GIVE_BACK)  # nothing, if it is done
            return await sampling
        except asyncio.CancelledError:
            revoked = (me := asyncio.current_task()) is not None and me.cancelling()
            if revoked or not self.stopping.is_set():
                raise
            raise Reject("the worker stops", requeue=True) from None
        finally:
            sampling.cancel()
            stopping.cancel()

    async def shard(self, run: str, shard: str, requests: list[dict[str, Any]]) -> dict[str, Any]:
        return await self._shards.run(run, shard, requests)  # counts a shard's deaths itself

    async def _tell_metrics(self) -> None:
        while True:
            try:
                metrics.fleet_status(await self._admission.status(), self._name)
            except (RedisError, OSError) as error:
                metrics.redis_away()
                log.debug("no status for the metrics: %s", type(error).__name__)
            await asyncio.sleep(_STATUS_S)

    def _parse_one(self, fields: Any) -> Request:
        return Request.parse(fields, self._profile)


def assemble(node: str) -> WorkerPort:
    """From the environment, for the Celery node of that name; opens nothing yet but the metrics' port, if asked for.

    Raises SettingError.
    """
    settings = Settings.load()
    port = WorkerPort(settings, node)
    if settings.metrics_port is not None:
        metrics.serve(settings.metrics_port, key_tag=settings.key_tag, address=settings.metrics_address)
    return port


def _workload_of_queue() -> str:
    delivery = (current_task.request.delivery_info or {}) if current_task else {}
    queue = delivery.get("routing_key")
    return queue if queue == Workload.BATCH.value else Workload.INTERACTIVE.value
