"""Defines :class:`Admission`: an asyncio semaphore and sliding window, shared through Redis."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from functools import partial
from typing import TYPE_CHECKING

from redis.asyncio import Redis
from redis.exceptions import RedisError

from brimful.errors import FleetError, RedisUnreachable
from brimful.names import Workload
from brimful.state.keys import TAGS
from brimful.state.status import Status, read_status_async
from brimful_worker.admission.errors import Retired
from brimful_worker.admission.expiry import expire_keys, forget_tags, keep_keys, keep_refreshing
from brimful_worker.admission.policy import Limits, WindowUse
from brimful_worker.admission.shared_queue import SharedQueue
from brimful_worker.admission.slot import Slot
from brimful_worker.admission.turns import NO_FLOW, Flow
from brimful_worker.admission.waiters import WORKLOADS, Queue
from brimful_worker.admission.wire.clients import close_client, open_client
from brimful_worker.admission.wire.coordinator import Coordinator
from brimful_worker.admission.wire.outgoing import describe_process
from brimful_worker.liveness.pulse import Pulse

if TYPE_CHECKING:
    from brimful.config import Settings

log = logging.getLogger(__name__)

_START_S = 10.0
_LEAVE_S = 2.0


class Admission:
    """Keeps this process, and every other one with the same Redis and key tag, within one API key's limits.

    Use it as ``async with Admission(...)``, or call :meth:`start` and :meth:`aclose`. Not thread-safe: use it on the
    event loop that started it.

    While the process stands still, its leases end in Redis and its slots go to others. What becomes of its requests:

    - the event loop is blocked: a thread shuts their connections in time, if they are watched (:meth:`Lease.watch`;
      ``LeaseConnector`` does it for aiohttp);
    - the whole process is stopped (SIGSTOP, a debugger, a frozen container): they go on, so that more than ``slots``
      may be active, unless ``guardian`` is set. Starts stay within the limits in any case.
    """

    def __init__(
        self,
        redis_url: str | Redis,
        key_tag: str,
        limits: Limits,
        *,
        name: str = "",
        fleet: str | None = None,
        places: int | None = None,
        guardian: bool = False,
    ) -> None:
        """``redis_url``: redis://, rediss://, unix:// or sentinel://; or a client of redis-py, whose settings
        the admission's own connections get, and which it never closes. ``key_tag``: any name of the API key except the
        key itself; processes with the same tag share its limits. ``limits``: of the first process, for all of them.
        ``name``: shown by ``brimful status``, host and pid by default. ``fleet``: whose tasks this process runs; None
        if it is no Celery worker. ``places``: tasks that it runs at once.

        ``guardian``: between :meth:`start` and :meth:`aclose` a companion process kills this one with SIGKILL when it
        is stopped as a whole, before its slots go to others (for leases below 5 s, soon after). Leave it off where
        somebody may want the process for more than that, such as a web server.
        """
        self._url = redis_url
        self._tag = key_tag
        self._limits = limits
        name = name or f"{socket.gethostname()}:{os.getpid()}"
        self._describe = partial(describe_process, name, fleet, places)
        # A budget is of a key, not of a time: what was spent of it must not be forgotten.
        self._expires = fleet is None and not limits.budget
        self._refreshing: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._guardian = guardian
        self._pulse: Pulse | None = None
        self._coordinator: Coordinator | None = None
        self._running: asyncio.Task[None] | None = None
        self._reader: Redis | None = None

    @classmethod
    def from_settings(cls, settings: Settings, *, name: str = "", places: int | None = None) -> Admission:
        """A member of the settings' fleet. Raises SettingError without an API key, and RedisUnreachable without a Redis
        URL."""
        if settings.redis_url is None:
            raise RedisUnreachable("no Redis: set BRIMFUL_REDIS_URL")
        return cls(
            settings.redis_url,
            settings.key_tag,
            Limits.from_settings(settings),
            name=name,
            fleet=settings.fleet,
            places=settings.concurrency if places is None else places,
        )

    async def start(self, timeout_s: float | None = _START_S) -> None:
        """Join the fleet. Returns once Redis has answered.

        Without an answer within ``timeout_s`` raises RedisUnreachable, RedisRefused (an error reply) or ScriptFailed;
        None waits for as long as it takes. Raises SchemaMismatch if the fleet on this Redis uses another version of the
        admission's keys and scripts, and EvictingRedis if this Redis drops keys when its memory is full.
        """
        coordinator = Coordinator(self._url, self._tag, self._limits, self._describe)
        running = asyncio.create_task(coordinator.run(), name="brimful-coordinator")
        try:
            async with asyncio.timeout(timeout_s):
                await coordinator.joined
        except BaseException as error:
            await _cancel(running)
            if isinstance(error, TimeoutError):
                raise coordinator.rpc.failure or RedisUnreachable("Redis cannot be reached: no answer") from None
            raise
        self._coordinator, self._running = coordinator, running
        try:
            if self._guardian:
                self._pulse = Pulse(lambda: self.stall_limit_s)
                self._pulse.start()
            await self._keep_keys()
        except BaseException:  # a cancellation, for one: nobody would call aclose()
            await self.aclose()
            raise

    async def _keep_keys(self) -> None:
        """Note the key's tag for `brimful status`, and say for how long the keys live."""
        try:
            await self._client().zadd(TAGS, {self._tag: time.time()})
            if self._expires:
                await forget_tags(self._client())
            await self._refresh_keys()
        except (OSError, RedisError, ValueError) as error:
            log.debug("admission: the key's tag is not listed for `brimful status`: %s", error)
        self._closing.clear()
        self._refreshing = asyncio.create_task(keep_refreshing(self._refresh_keys, self._closing))

    async def _refresh_keys(self) -> None:
        if self._expires:
            await expire_keys(self._client(), self._tag, self._limits.window_s)
        else:
            await keep_keys(self._client(), self._tag)

    async def aclose(self) -> None:
        """Leave the fleet, within three seconds. Waiting coroutines are cancelled; leases still held are lost."""
        pulse, self._pulse = self._pulse, None
        if pulse is not None:
            await asyncio.to_thread(pulse.stop)
        coordinator, self._coordinator = self._coordinator, None
        if coordinator is not None and self._running is not None:
            coordinator.leave()
            await asyncio.wait({self._running}, timeout=_LEAVE_S)
            await _cancel(self._running)
        refreshing, self._refreshing = self._refreshing, None
        if refreshing is not None:
            await self._leave_keys(refreshing)
        reader, self._reader = self._reader, None
        if reader is not None:
            await close_client(reader, self._url)

    async def __aenter__(self) -> Admission:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def slot(
        self,
        workload: Workload | str = Workload.BATCH,
        *,
        tokens: int = 0,
        flow: Flow = NO_FLOW,
        name: str = "",
        since: float | None = None,
    ) -> Slot:
        """Wait for a slot and a start; hold the slot until the ``async with`` block ends.

        ``tokens`` is the most that the request may use (prompt estimate + n x max_tokens), needed only where tokens are
        limited. Entering raises BudgetExhausted when the fleet's token budget is at its end, and FleetError when the
        admission was closed or has failed. Leaving raises LeaseLost if the lease could not be kept. When a block raises
        without :meth:`Lease.report`, the slot stays taken for :attr:`Limits.cooldown_s`.

        ``flow``: flows of one workload share this process's grants by their weights, whoever came first; where tokens
        are limited, only requests for as many tokens change places. ``name`` names the request in the whole fleet:
        :attr:`Lease.deaths` then says how many processes have died while they held a slot for it. ``since``
        (``boot_time()``): it has waited since then, and keeps that place in the queue.
        """
        workload = workload if isinstance(workload, Workload) else Workload(workload)
        return Slot(self._started().local_state, WORKLOADS[workload], flow, tokens, name, since)

    def shared_queue(self, workload: Workload) -> SharedQueue:
        """The workload's waiters of this process, whose grants are shared with other processes by weight."""
        return SharedQueue(self._started().local_state, WORKLOADS[workload])

    def start_only(self, since: float | None = None) -> Slot:
        """Wait for a start without a slot: for a request that counts as a start and is made while a slot is held, such
        as a poll of a Job.

        It goes before everything else, and waits for the end of a pause even where starts are not limited. Its lease
        cannot be lost. ``since``: as of :meth:`slot`.
        """
        return Slot(self._started().local_state, Queue.START_ONLY, NO_FLOW, 0, since=since)

    async def pause(self, seconds: float, reason: str, *, until_accepted: bool = False) -> None:
        """Let nobody in the fleet start anything for this long, as a provider's Retry-After demands. A longer pause in
        force stays. Afterwards the slots are filled one by one.

        ``until_accepted``: it ends earlier if a request is reported as ``ok``. For a refusal by the limit on slots:
        when another request has ended, the provider has a slot."""
        self._started().pause(seconds, reason, until_accepted=until_accepted)

    def retire(self, error: FleetError | None = None) -> None:
        """Grant nothing any more: those that wait, and those that ask later, get ``error``, by default
        :class:`Retired`. Leases that are held are renewed until their requests have ended."""
        self._started().local_state.stop(error or Retired("the API key was replaced"), cancel=False)

    async def status(self) -> Status:
        """What ``brimful status`` shows; also before :meth:`start`. Raises redis.RedisError or OSError."""
        return await read_status_async(self._client(), self._tag)

    @property
    def held(self) -> int:
        """Number of slots that this process holds."""
        return len(self._coordinator.local_state.leases.held) if self._coordinator else 0

    @property
    def slots(self) -> int:
        """The slots of the fleet, as this process knows them: those set, or fewer if the provider refuses more."""
        return self._coordinator.local_state.rules.slots if self._coordinator else self._limits.slots

    @property
    def waiting(self) -> int:
        """Number of coroutines of this process that wait for a slot or a start."""
        return len(self._coordinator.local_state.waiting) if self._coordinator else 0

    @property
    def commands(self) -> int:
        """Number of commands that this process has sent to Redis."""
        return self._coordinator.rpc.commands if self._coordinator else 0

    @property
    def window(self) -> WindowUse | None:
        """What is used of the window, as of this process's last command; None before the first. Costs no command."""
        coordinator = self._coordinator
        return None if coordinator is None else coordinator.fleet_view.window(coordinator.local_state.rules)

    @property
    def round_trip_s(self) -> float:
        """Seconds that Redis takes to answer, as of late; 0 if that is not known."""
        return self._coordinator.rpc.round_trips.rtt_ms / 1000 if self._coordinator else 0.0

    @property
    def failure(self) -> FleetError | None:
        """Why Redis has not carried out the last command yet; None while all is well, and before :meth:`start`."""
        return self._coordinator.rpc.failure if self._coordinator else None

    @property
    def stall_limit_s(self) -> float:
        """For how many seconds from now this process could stand still before a lease of its own ended. Callable from
        any thread."""
        return self._coordinator.local_state.leases.stall_limit_s() if self._coordinator else self._limits.lease_s / 2

    async def _leave_keys(self, refreshing: asyncio.Task[None]) -> None:
        self._closing.set()
        try:
            async with asyncio.timeout(_LEAVE_S / 2):
                await asyncio.wait({refreshing})
                if self._expires:
                    await self._refresh_keys()
        except (OSError, RedisError, ValueError, TimeoutError) as error:
            log.debug("admission: the keys' time to live was not set: %s", error)
        finally:
            await _cancel(refreshing)

    def _client(self) -> Redis:
        self._reader = self._reader or open_client(self._url, decode_responses=True)
        return self._reader

    def _started(self) -> Coordinator:
        if self._coordinator is None:
            raise RuntimeError("the admission is not started: await admission.start(), or use `async with`")
        return self._coordinator


async def _cancel(task: asyncio.Task[None]) -> None:
    """Cancel once: a second time would interrupt the task's cleaning up."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
