"""The admission as programs use it."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from types import TracebackType
from typing import TYPE_CHECKING

from redis.asyncio import Redis
from redis.exceptions import RedisError

from brimful.errors import RedisUnreachable
from brimful.names import Workload
from brimful.state.keys import TAGS
from brimful.state.redis_url import close_redis_client, redis_client
from brimful.state.status import Status, read_status_async
from brimful_worker.admission.errors import LeaseLost
from brimful_worker.admission.lease import Lease
from brimful_worker.admission.local_state import LocalState
from brimful_worker.admission.policy import Limits
from brimful_worker.admission.waiters import WORKLOADS, Queue
from brimful_worker.admission.wire.coordinator import Coordinator
from brimful_worker.liveness.boot_time import boot_time

if TYPE_CHECKING:
    from brimful.config import Settings

log = logging.getLogger(__name__)

_START_S = 10.0
_LEAVE_S = 2.0


class Admission:
    """Keeps this process, and with it the whole fleet that uses the same Redis and tag, within one key's limits."""

    def __init__(self, redis_url: str, key_tag: str, limits: Limits, *, name: str = "") -> None:
        """``key_tag`` is any name of the key that is not the key itself; all processes with it share the limits.
        ``name`` is shown by ``brimful status``."""
        self._url = redis_url
        self._tag = key_tag
        self._limits = limits
        self._name = name or f"{socket.gethostname()}:{os.getpid()}"
        self._coordinator: Coordinator | None = None
        self._running: asyncio.Task[None] | None = None
        self._reader: Redis | None = None

    @classmethod
    def from_settings(cls, settings: Settings, *, name: str = "") -> Admission:
        """Raises SettingError when there is no key, and RedisUnreachable when there is no Redis URL."""
        if settings.redis_url is None:
            raise RedisUnreachable("no Redis: set BRIMFUL_REDIS_URL")
        return cls(settings.redis_url, settings.key_tag, Limits.from_settings(settings), name=name)

    async def start(self, timeout_s: float | None = _START_S) -> None:
        """Returns when Redis has been reached. Raises RedisUnreachable after ``timeout_s`` seconds without an answer;
        None waits for as long as it takes."""
        coordinator = Coordinator(self._url, self._tag, self._limits, self._name)
        self._coordinator = coordinator
        self._running = asyncio.create_task(coordinator.run(), name="brimful-coordinator")
        joining = asyncio.create_task(coordinator.joined.wait())
        try:
            await asyncio.wait({joining, self._running}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not coordinator.joined.is_set():
                fault = await self._give_up(joining)
        if not coordinator.joined.is_set():
            raise fault or RedisUnreachable(f"Redis cannot be reached: {coordinator.talk.refusal or 'no answer'}")
        await self._register()

    async def aclose(self) -> None:
        """Says good-bye to Redis, within two seconds. Waiting coroutines are cancelled; leases still held are lost."""
        coordinator, self._coordinator = self._coordinator, None
        if coordinator is None or self._running is None:
            return
        coordinator.local_state.settle_all()
        for ticket in coordinator.leave():
            ticket.future.cancel()
        await asyncio.wait({self._running}, timeout=_LEAVE_S)
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        reader, self._reader = self._reader, None
        if reader is not None:
            await close_redis_client(reader)

    async def __aenter__(self) -> Admission:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def slot(self, workload: Workload | str = Workload.BATCH, *, tokens: int = 0) -> Slot:
        """Waits for a slot and a start, and holds the slot until the block ends.

        ``tokens`` is the most the request may use (prompt estimate + n x max_tokens), needed only where tokens are
        limited. Raises LeaseLost out of the block when the lease could not be kept, BudgetExhausted when the
        budget is at its end. A block left by an exception without :meth:`Lease.report` lets the slot cool off.
        """
        return Slot(self._speak().local_state, WORKLOADS[Workload(workload)], tokens)

    def start_only(self) -> Slot:
        """Waits for a start without a slot: for a request that the window counts, made by who holds a slot already, as
        a poll of a Job. It goes before everything else, costs nothing where starts are not limited but still waits
        for the end of a pause, and its lease cannot be lost."""
        return Slot(self._speak().local_state, Queue.START_ONLY, 0)

    async def pause(self, seconds: float, reason: str) -> None:
        """Nobody of the fleet starts anything for so long (as the provider's Retry-After wants); a longer pause in
        force stays. Afterwards the slots are filled one by one."""
        self._speak().pause(seconds, reason)

    async def status(self) -> Status:
        """As ``brimful status`` shows it."""
        if self._reader is None:
            client = redis_client(self._url)
            try:
                return await read_status_async(client, self._tag)
            finally:
                await close_redis_client(client)
        return await read_status_async(self._reader, self._tag)

    @property
    def held(self) -> int:
        """Slots this process holds now."""
        return len(self._coordinator.local_state.held) if self._coordinator else 0

    @property
    def patience_s(self) -> float:
        """Seconds from now for which this process may stand still before a lease of its ends; from any thread."""
        return self._coordinator.local_state.patience() if self._coordinator else self._limits.lease_s / 2

    @property
    def waiting(self) -> int:
        """Coroutines of this process that wait for a slot now."""
        return sum(self._coordinator.local_state.waiting.count(queue) for queue in Queue) if self._coordinator else 0

    @property
    def commands(self) -> int:
        """Commands this process has sent for its admission."""
        return self._coordinator.talk.commands if self._coordinator else 0

    async def _give_up(self, joining: asyncio.Task[bool]) -> BaseException | None:
        """Ends what ``start`` began. Returns what broke the coordinator, if anything did."""
        running, self._running, self._coordinator = self._running, None, None
        assert running is not None
        joining.cancel()
        running.cancel()
        await asyncio.gather(joining, running, return_exceptions=True)
        return None if running.cancelled() else running.exception()

    async def _register(self) -> None:
        """Lists the tag for ``status``; worth no failure."""
        self._reader = redis_client(self._url)
        try:
            await self._reader.zadd(TAGS, {self._tag: time.time()})
        except (OSError, RedisError) as error:
            log.debug("admission: the key's tag is not listed: %s", error)

    def _speak(self) -> Coordinator:
        if self._coordinator is None:
            raise RuntimeError("the admission is not started: await admission.start(), or use `async with`")
        return self._coordinator


class Slot:
    """``async with`` it; see :meth:`Admission.slot`. Leaving never waits, so it cannot be cancelled half-way."""

    def __init__(self, local_state: LocalState, queue: Queue, tokens: int) -> None:
        self._local_state = local_state
        self._queue = queue
        self._tokens = tokens
        self._lease: Lease | None = None
        self._task: asyncio.Task[object] | None = None
        self._cancelling = 0
        self._interrupted = False

    async def __aenter__(self) -> Lease:
        since = boot_time()
        while True:
            ticket = self._local_state.ask(self._queue, self._tokens, since)
            try:
                lease = await ticket.future
            except BaseException:
                self._local_state.cancel(ticket)
                raise
            if boot_time() < lease.wire_deadline and not lease.lost:
                break
            lease.given_back = True
            self._local_state.end(lease, failed=False)
        self._lease = lease
        self._task = asyncio.current_task()
        self._cancelling = self._task.cancelling() if self._task else 0
        lease.on_lost(self._interrupt)
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lease, task = self._lease, self._task
        assert lease is not None
        lease.on_lost(None)
        self._local_state.end(lease, failed=error is not None)
        if self._interrupted and task is not None:
            others = task.uncancel() > self._cancelling
            if others and isinstance(error, asyncio.CancelledError):
                return  # somebody else wants the task to end too
        if lease.lost and error is not None and not lease.given_back:
            raise LeaseLost("the slot's lease could not be renewed; the request was ended") from error

    def _interrupt(self) -> None:
        if self._task is not None:
            self._interrupted = True
            self._task.cancel()
