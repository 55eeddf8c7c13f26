"""A process that sends a fleet's requests: its API key, admission, sampler, place in the fleet, health and metrics.

What a worker and a front door have in common.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack

from redis import RedisError

from brimful.config import Settings
from brimful.runtime.aio import cancel_and_wait
from brimful.state.provider import PUBLISH_S, publish
from brimful.state.redis_retry import retry_until_available
from brimful.state.redis_url import close_redis_client, redis_client, required
from brimful_worker.liveness.pulse import Pulse
from brimful_worker.membership import Membership
from brimful_worker.metrics import catalogue as metrics
from brimful_worker.sampling.key_in_use import KeyInUse
from brimful_worker.sampling.sampler import Sampler

log = logging.getLogger(__name__)

STATUS_S = 5.0
"""From one reading of the fleet's status for the metrics to the next."""


class FleetProcess:
    """Use it on one event loop. :meth:`look_at_key` may be called from any thread."""

    def __init__(self, settings: Settings, name: str, *, concurrency: int, stopping: Callable[[], bool]) -> None:
        """``name``: for ``brimful status``. ``concurrency``: Celery tasks that it runs at once. ``stopping``: as for
        :class:`Sampler`. Raises SettingError for whatever is missing or wrong. Opens nothing."""
        self._settings = settings
        self._name = name
        self.key = KeyInUse(settings, name, concurrency)
        self.sampler = Sampler(settings, self.key.admission, self.key.provider, stopping=stopping)
        self._membership = Membership(settings, takes_tasks=concurrency > 0)
        self._republish = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stack = AsyncExitStack()

    async def start(self) -> None:
        """Returns when Redis has been reached, however long that takes; leaves nothing open when cancelled.

        Raises FleetTaken if the fleet is another API key's.
        """
        self._loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            await self.key.open()
            stack.push_async_callback(self.key.close)
            if self._settings.guardian:
                pulse = Pulse(lambda: self.key.stall_limit_s)
                pulse.start()
                stack.push_async_callback(asyncio.to_thread, pulse.stop)
            stack.push_async_callback(self.key.leave)
            tasks: list[asyncio.Task[None]] = []
            stack.push_async_callback(cancel_and_wait, tasks)  # before their clients are closed
            if metrics.serving():  # before Redis is waited for: its absence is no reason to restart a worker
                tasks += map(asyncio.create_task, (metrics.heartbeat(), self._update_metrics()))
            await self.key.admission.start(timeout_s=None)
            await self._membership.join()
            followed = self.key.follow(self._key_replaced)
            working = (self._publish(), self._publish_health(), self._membership.watch(), followed)
            tasks += map(asyncio.create_task, working)
            self._stack = stack.pop_all()

    async def aclose(self) -> None:
        """Leave the fleet. Idempotent."""
        await self._stack.aclose()

    def look_at_key(self) -> None:
        """Read the API key's file at once. Callable from any thread and from a signal's handler."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.key.reread.set)

    def _key_replaced(self) -> None:
        self.sampler.use(self.key.admission, self.key.provider)
        self.sampler.health.forget()
        metrics.rekey(self.key.settings.key_tag)
        self._republish.set()
        self._membership.replace_key(self.key.settings)

    async def _publish(self) -> None:
        """Clients read what the provider is; they have no key, and may have other settings."""
        client = redis_client(required(self._settings.redis_url))
        try:
            while True:
                self._republish.clear()
                await retry_until_available(lambda: publish(client, self.key.settings))
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._republish.wait(), PUBLISH_S)
        finally:
            await close_redis_client(client)

    async def _publish_health(self) -> None:
        client = redis_client(required(self._settings.redis_url))
        try:
            await self.sampler.health.publish(client, lambda: self.key.settings.key_tag)
        finally:
            await close_redis_client(client)

    async def _update_metrics(self) -> None:
        while True:
            try:
                metrics.fleet_status(await self.key.admission.status(), self._name)
            except (RedisError, OSError) as error:
                metrics.redis_away()
                log.debug("no status for the metrics: %s", type(error).__name__)
            await asyncio.sleep(STATUS_S)


def open_metrics(settings: Settings) -> None:
    """Serve this process's metrics, if a port is set. Raises SettingError."""
    if settings.metrics_port is not None:
        token = settings.metrics_token.get_secret_value() if settings.metrics_token else None
        metrics.serve(settings.metrics_port, key_tag=settings.key_tag, address=settings.metrics_address, token=token)
