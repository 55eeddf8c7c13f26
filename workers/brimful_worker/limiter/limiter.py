"""Defines :class:`Limiter`, the limiter for asyncio programs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import wraps
from types import TracebackType
from typing import ParamSpec, TypeVar

from redis.asyncio import Redis

from brimful.names import Workload
from brimful_worker.admission import Admission, Lease, StaleGrant
from brimful_worker.limiter.acquire import AT_ONCE, NO_GATE, Gate, LeaseGroup, Request, acquire
from brimful_worker.limiter.errors import LimiterClosed, SlotTimeout
from brimful_worker.limiter.permit import Permit
from brimful_worker.limiter.windows import (
    Timing,
    Window,
    admissions,
    check_timeout,
    check_tokens,
)
from brimful_worker.liveness.boot_time import boot_time

P = ParamSpec("P")
R = TypeVar("R")
_TRY_S = 0.05
_CLOSED = "the limiter is closed"


class Limiter:
    """Keeps this process, and every other one with the same Redis and ``name``, within the same limits::

        limiter = Limiter("redis://localhost:6379", "billing-api", slots=16, windows=[Window(10, 1), Window(600, 60)])

        async with limiter:          # waits for a slot and a start; holds the slot until the block ends
            await client.get(...)

    It starts with its first use, and belongs to that event loop; end it with :meth:`aclose`
    (``async with contextlib.aclosing(Limiter(...)) as limiter``).

    Failure mode: while Redis is away nothing is granted. A block whose slot cannot be kept is cancelled and raises
    LeaseLost, before anybody else gets the slot.
    """

    def __init__(
        self,
        redis: str | Redis,
        name: str,
        *,
        slots: int | None = None,
        starts: int | None = None,
        window_s: float = 60.0,
        tokens: int | None = None,
        windows: Iterable[Window] = (),
        timeout_s: float | None = None,
        lease_s: float = 8.0,
        cooldown_s: float = 1.0,
        guard_s: float | None = None,
        circuit_breaker: int = 0,
    ) -> None:
        """``redis``: a URL (``redis://``, ``rediss://``, ``unix://``, ``sentinel://``), or a client of
        ``redis.asyncio``, whose settings the limiter's own connections get, and which it never closes. ``name``: what
        is limited; processes with the same name share its limits. Do not use a secret: it is part of keys in Redis.

        ``slots``: blocks at the same time. ``starts`` and ``tokens`` in any ``window_s`` seconds; ``windows``: several
        such windows, all of which must have room. At least one limit must be set, and every process sets the same.

        ``timeout_s``: the longest wait of a block that sets none of its own; None = for ever. ``lease_s``: a process
        that is gone loses its slots after this. ``cooldown_s``: how long a slot stays taken after a block that raised.
        ``guard_s``: by how much windows are widened; by default 0.2 s and 1 % of the window. ``circuit_breaker``: as in
        :class:`brimful_worker.admission.Limits`, for blocks that call :meth:`Lease.report`.

        Raises InvalidLimit, a UsageError and ValueError, for numbers that cannot be limits.
        """
        if not isinstance(redis, (str, Redis)):
            raise TypeError(f"redis = {type(redis).__name__}: takes a URL or a client of redis.asyncio")
        single = [] if starts is None and tokens is None else [Window(starts, window_s, tokens)]
        timing = Timing(lease_s, cooldown_s, guard_s, circuit_breaker)
        check_timeout(timeout_s)
        parts = admissions(name, slots, [*single, *windows], timing)
        self.name = name
        self._timeout_s = timeout_s
        self._parts = [(Admission(redis, tag, limits), window) for tag, window, limits in parts]
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changing = asyncio.Lock()  # held while it starts and while it ends
        self._starting: asyncio.Task[None] | None = None
        self._started = False
        self._closed = False
        self._waiting = 0
        self._gates: dict[Workload, Gate] = dict.fromkeys(Workload, NO_GATE)
        if len(parts) > 1:
            self._gates = {workload: asyncio.Semaphore(AT_ONCE) for workload in Workload}
        self._default = self.slot()

    async def start(self) -> None:
        """Connect, and join the other processes; the first use does it too.

        A caller that gives up does not end the start. Raises RedisUnreachable, RedisRefused and the other errors of
        :meth:`Admission.start`, and LimiterClosed.
        """
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            raise RuntimeError("the limiter belongs to the event loop that used it first; make one for each loop")
        self._loop = loop
        self._check_open()
        if self._started:
            return
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._start(), name="brimful-limiter-start")
            self._starting.add_done_callback(_retrieve)
        await asyncio.wait({self._starting})  # a caller that gives up does not end the start, which the others need
        self._starting.result()
        self._check_open()

    async def _start(self) -> None:
        async with self._changing:
            self._check_open()
            if self._started:
                return
            ready: list[Admission] = []
            try:
                for admission, _ in self._parts:
                    await admission.start()
                    ready.append(admission)
            except BaseException:
                for admission in ready:
                    await admission.aclose()
                raise
            self._started = True

    async def aclose(self) -> None:
        """Leave. Coroutines that wait get LimiterClosed; slots that are still held are lost. May be called again."""
        self._closed = True
        async with self._changing:
            if self._started:
                self._started = False
                for admission, _ in self._parts:
                    admission.retire(LimiterClosed(_CLOSED))
                await asyncio.gather(*(admission.aclose() for admission, _ in self._parts))

    async def __aenter__(self) -> Lease:
        return await self._default.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._default.__aexit__(kind, error, trace)

    def slot(
        self,
        workload: Workload | str = Workload.BATCH,
        *,
        tokens: int = 0,
        timeout_s: float | None = None,
    ) -> LimiterSlot:
        """An async context manager that waits for a slot and a start, and yields its Lease. Tasks may share it.

        ``workload``: ``interactive`` goes before ``batch``. ``tokens``: how many of them the block may use, where they
        are limited; ``lease.report(ok=…, tokens_used=…)`` puts the true number in their place.

        Entering raises SlotTimeout after ``timeout_s`` seconds, LimiterClosed, InvalidLimit for tokens for which no
        window ever has room, and what :meth:`start` raises. Leaving raises LeaseLost if the slot could not be kept.
        """
        check_timeout(timeout_s)
        check_tokens([window for _, window in self._parts], tokens)
        return LimiterSlot(self, Workload(workload), tokens, self._timeout_s if timeout_s is None else timeout_s)

    async def try_acquire(self, workload: Workload | str = Workload.BATCH, *, tokens: int = 0) -> Permit | None:
        """A slot if one is free now, without waiting behind others; else None. Leave the permit, or release it.

        It waits for Redis's answer, for no longer than 50 ms and three round trips.
        """
        await self.start()
        try:
            return await self.slot(workload, tokens=tokens, timeout_s=self._try_s()).acquire()
        except SlotTimeout:
            return None

    def limited(
        self,
        workload: Workload | str = Workload.BATCH,
        *,
        tokens: int = 0,
        timeout_s: float | None = None,
    ) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]:
        """A decorator: each call of the coroutine function takes a :meth:`slot`.

        A call that ends with a StaleGrant by which nothing was sent is made again.
        """
        slot = self.slot(workload, tokens=tokens, timeout_s=timeout_s)

        def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
            @wraps(function)
            async def call(*args: P.args, **kwargs: P.kwargs) -> R:
                while True:
                    lease: Lease | None = None
                    try:
                        async with slot as lease:
                            return await function(*args, **kwargs)
                    except StaleGrant:
                        if lease is None or not lease.given_back:
                            raise

            return call

        return decorate

    async def pause(self, seconds: float, reason: str = "paused") -> None:
        """Let no process start anything for this long, as a ``Retry-After`` demands."""
        await self.start()
        for admission, _ in self._parts:
            await admission.pause(seconds, reason)

    @property
    def held(self) -> int:
        """Number of slots that this process holds."""
        return self._parts[0][0].held

    @property
    def waiting(self) -> int:
        """Number of coroutines of this process that wait for a slot or a start."""
        return self._waiting

    # what LimiterSlot calls

    async def _acquire(self, workload: Workload, tokens: int) -> LeaseGroup:
        request = Request(workload, tokens, boot_time(), self._check_open)
        if not self._started or self._loop is not asyncio.get_running_loop():
            await self.start()
        self._waiting += 1
        try:
            return await acquire(self._parts, request, self._gates[workload])
        finally:
            self._waiting -= 1

    def _check_open(self) -> None:
        if self._closed:
            raise LimiterClosed(_CLOSED)

    def _try_s(self) -> float:
        return _TRY_S + 3 * sum(admission.round_trip_s for admission, _ in self._parts)


def _retrieve(task: asyncio.Task[None]) -> None:
    """Take the error of a start for which nobody waits any more; the next use starts again."""
    if not task.cancelled():
        task.exception()


class LimiterSlot:
    """What :meth:`Limiter.slot` returns. Each entry waits for a slot of its own."""

    def __init__(self, limiter: Limiter, workload: Workload, tokens: int, timeout_s: float | None) -> None:
        self._limiter = limiter
        self._workload, self._tokens, self._timeout_s = workload, tokens, timeout_s
        self._entries: dict[asyncio.Task[object] | None, list[LeaseGroup]] = {}

    async def acquire(self) -> Permit:
        """Wait, and hold the slot until the permit is released."""
        held = await self._enter()
        held.detach()
        return Permit(held)

    async def __aenter__(self) -> Lease:
        held = await self._enter()
        self._entries.setdefault(asyncio.current_task(), []).append(held)
        return held.lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task = asyncio.current_task()
        if task not in self._entries and len(self._entries) == 1:
            (task,) = self._entries
        entries = self._entries.get(task)
        if not entries:
            raise RuntimeError("the task that leaves this slot is not inside it: leave it in the task that entered it")
        held = entries.pop()
        if not entries:
            del self._entries[task]
        await held.leave(kind, error, trace)

    async def _enter(self) -> LeaseGroup:
        try:
            async with asyncio.timeout(self._timeout_s) as scope:
                return await self._limiter._acquire(self._workload, self._tokens)
        except TimeoutError:
            if not scope.expired():
                raise
        raise SlotTimeout(f"no slot of {self._limiter.name} was free within {self._timeout_s:g} s")
