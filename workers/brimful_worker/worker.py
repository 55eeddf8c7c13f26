"""A brimful worker put together: settings → admission → provider → sampler → the port that task bodies call."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import AsyncExitStack
from typing import Any

from celery import Task, current_task
from celery.exceptions import Ignore, Reject
from celery.signals import worker_ready
from redis import RedisError

from brimful.config import Settings
from brimful.dispatch.ledger import CLAIM_TTL_S
from brimful.names import Workload, plain_queue
from brimful.outcome import Outcome
from brimful.request import Request, SampleArguments
from brimful.state.provider import PUBLISH_S, publish
from brimful.state.redis_retry import retry_until_available
from brimful.state.redis_url import close_redis_client, redis_client, required
from brimful_worker.liveness.pulse import Pulse
from brimful_worker.membership import Membership
from brimful_worker.memory_limit import MemoryLimit
from brimful_worker.metrics import catalogue as metrics
from brimful_worker.pool.execution import run_coroutine
from brimful_worker.provider import GIVE_BACK
from brimful_worker.sampling.key_in_use import KeyInUse
from brimful_worker.sampling.sampler import Sampler
from brimful_worker.shards.shard import ShardRunner
from brimful_worker.singles.once import Once, Revoked, announce_revoked

log = logging.getLogger(__name__)

_STATUS_S = 5.0


class WorkerPort:
    """Implements brimful.runtime.port.Port. Everything except ``run`` is used on the loop."""

    def __init__(self, settings: Settings, name: str) -> None:
        """Raises SettingError for whatever is missing or wrong. Opens nothing."""
        self._settings = settings
        self._name = name
        self.stopping = asyncio.Event()
        self._key = KeyInUse(settings, name)
        self._sampler = Sampler(settings, self._key.admission, self._key.provider, stopping=self.stopping.is_set)
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
        self._membership = Membership(settings)
        self._memory = None if settings.worker_max_memory is None else MemoryLimit(settings.worker_max_memory)
        self._republish = asyncio.Event()
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Returns when Redis has been reached, however long that takes; leaves nothing open when cancelled.

        Raises FleetTaken if the fleet is another API key's.
        """
        self._loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            await self._key.open()
            stack.push_async_callback(self._key.close)
            if self._settings.guardian:
                pulse = Pulse(lambda: self._key.stall_limit_s)
                pulse.start()
                stack.push_async_callback(asyncio.to_thread, pulse.stop)
            if metrics.serving():  # before Redis is waited for: its absence is no reason to restart a worker
                for updating in (metrics.heartbeat(), self._update_metrics()):
                    stack.callback(asyncio.create_task(updating).cancel)
            stack.push_async_callback(self._key.leave)
            await self._key.admission.start(timeout_s=None)
            await self._membership.join()
            followed = self._key.follow(self._key_replaced)
            for working in (self._publish(), self._publish_health(), self._membership.watch(), followed):
                stack.callback(asyncio.create_task(working).cancel)
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
        return await self._shards.run(run, shard, requests)

    def look_at_key(self) -> None:
        """Read the API key's file at once. Callable from any thread and from a signal's handler."""
        self._loop.call_soon_threadsafe(self._key.reread.set)

    def _key_replaced(self) -> None:
        self._sampler.use(self._key.admission, self._key.provider)
        self._sampler.health.forget()
        metrics.rekey(self._key.settings.key_tag)
        self._republish.set()
        self._membership.replace_key(self._key.settings)

    async def _publish(self) -> None:
        """Clients read what the provider is; they have no key, and may have other settings."""
        client = redis_client(required(self._settings.redis_url))
        try:
            while True:
                self._republish.clear()
                await retry_until_available(lambda: publish(client, self._key.settings))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._republish.wait(), PUBLISH_S)
        finally:
            await close_redis_client(client)

    async def _publish_health(self) -> None:
        client = redis_client(required(self._settings.redis_url))
        try:
            await self._sampler.health.publish(client, lambda: self._key.settings.key_tag)
        finally:
            await close_redis_client(client)

    async def _update_metrics(self) -> None:
        while True:
            try:
                metrics.fleet_status(await self._key.admission.status(), self._name)
            except (RedisError, OSError) as error:
                metrics.redis_away()
                log.debug("no status for the metrics: %s", type(error).__name__)
            await asyncio.sleep(_STATUS_S)


def assemble(node: str) -> WorkerPort:
    """A worker from the environment, for the Celery node of that name. Opens only the metrics port, if one is set.

    Raises SettingError.
    """
    settings = Settings.load()
    port = WorkerPort(settings, node)
    if settings.metrics_port is not None:
        token = settings.metrics_token.get_secret_value() if settings.metrics_token else None
        metrics.serve(settings.metrics_port, key_tag=settings.key_tag, address=settings.metrics_address, token=token)
    if settings.api_key_file is not None and not sys.stdout.isatty():

        def on_ready(**_: Any) -> None:
            """Instead of Celery's handler, which restarts a worker that is not on a terminal."""
            signal.signal(signal.SIGHUP, lambda *_: port.look_at_key())

        worker_ready.connect(on_ready, weak=False)
    return port


def _workload_of_queue() -> str:
    delivery = current_task.request.delivery_info or {}
    queue = plain_queue(str(delivery.get("routing_key")))
    return queue if queue == Workload.BATCH.value else Workload.INTERACTIVE.value
