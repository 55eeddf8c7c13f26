"""The limiter for threads: a :class:`Limiter` on an event loop in a thread of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import redis as redis_sync
import redis.asyncio as redis_async

from brimful.names import Workload
from brimful_worker.admission import Lease, LeaseLost, StaleGrant
from brimful_worker.admission.lease import current_lease
from brimful_worker.limiter.errors import LimiterClosed
from brimful_worker.limiter.limiter import Limiter, LimiterSlot
from brimful_worker.limiter.limiter_thread import LimiterThread, hold
from brimful_worker.limiter.windows import Window, check_timeout, check_tokens

P = ParamSpec("P")
R = TypeVar("R")
_CONNECTIONS: dict[type[Any], type[Any]] = {
    redis_sync.Connection: redis_async.Connection,
    redis_sync.SSLConnection: redis_async.SSLConnection,
    redis_sync.UnixDomainSocketConnection: redis_async.UnixDomainSocketConnection,
}


class SyncLimiter:
    """A :class:`Limiter` for code without an event loop; all threads of the process may share it::

        limiter = SyncLimiter("redis://localhost:6379", "billing-api", slots=16, starts=600)

        with limiter:
            requests.get(...)

    Arguments and errors are those of :class:`Limiter`; ``redis`` may also be a ``redis.Redis``. Its thread starts with
    the first use and ends with :meth:`close`, or with the process. A child of ``fork`` starts a thread of its own.

    Failure mode: a thread cannot be interrupted. When its slot cannot be kept, or the limiter is closed, a watched
    connection is shut (:mod:`brimful_worker.limiter.httpx_adapter` watches), and further requests of the block and its
    end raise LeaseLost.
    """

    def __init__(
        self,
        redis: str | redis_sync.Redis | redis_async.Redis,
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
        limits = {"slots": slots, "starts": starts, "window_s": window_s, "tokens": tokens, "windows": tuple(windows)}
        options = {"lease_s": lease_s, "cooldown_s": cooldown_s, "guard_s": guard_s, "circuit_breaker": circuit_breaker}
        self._options: dict[str, Any] = {**limits, **options, "timeout_s": timeout_s}
        self._redis = _as_async(redis) if isinstance(redis, redis_sync.Redis) else redis
        self.name = name
        self._windows = [window for _, window in self._new()._parts]  # the numbers are checked now
        self._lock = threading.Lock()
        self._thread: LimiterThread | None = None
        self._closed = False
        self._default = SyncSlot(self, {})

    def close(self) -> None:
        """Leave. Threads that wait get LimiterClosed; slots that are still held are lost. May be called again."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()

    def __enter__(self) -> Lease:
        return self._default.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._default.__exit__(kind, error, trace)

    def slot(
        self, workload: Workload | str = Workload.BATCH, *, tokens: int = 0, timeout_s: float | None = None
    ) -> SyncSlot:
        """As :meth:`Limiter.slot`, for ``with``. Threads may share it."""
        check_timeout(timeout_s)
        check_tokens(self._windows, tokens)
        return SyncSlot(self, {"workload": Workload(workload), "tokens": tokens, "timeout_s": timeout_s})

    def try_acquire(self, workload: Workload | str = Workload.BATCH, *, tokens: int = 0) -> SyncPermit | None:
        """As :meth:`Limiter.try_acquire`."""
        thread = self._running()
        limiter = thread.limiter
        thread.call(limiter.start())
        options: dict[str, Any] = {"workload": Workload(workload), "tokens": tokens, "timeout_s": limiter._try_s()}
        try:
            return SyncPermit(thread, thread.limiter.slot(**options))
        except TimeoutError:
            return None

    def limited(
        self, workload: Workload | str = Workload.BATCH, *, tokens: int = 0, timeout_s: float | None = None
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """A decorator as :meth:`Limiter.limited`, for functions."""
        slot = self.slot(workload, tokens=tokens, timeout_s=timeout_s)

        def decorate(function: Callable[P, R]) -> Callable[P, R]:
            @wraps(function)
            def call(*args: P.args, **kwargs: P.kwargs) -> R:
                while True:
                    lease: Lease | None = None
                    try:
                        with slot as lease:
                            return function(*args, **kwargs)
                    except StaleGrant:
                        if lease is None or not lease.given_back:
                            raise

            return call

        return decorate

    def pause(self, seconds: float, reason: str = "paused") -> None:
        """As :meth:`Limiter.pause`."""
        thread = self._running()
        thread.call(thread.limiter.pause(seconds, reason))

    @property
    def held(self) -> int:
        """Number of slots that this process holds."""
        thread = self._thread
        return thread.limiter.held if thread is not None and thread.pid == os.getpid() else 0

    @property
    def waiting(self) -> int:
        """Number of threads of this process that wait for a slot or a start."""
        thread = self._thread
        return thread.limiter.waiting if thread is not None and thread.pid == os.getpid() else 0

    def _new(self) -> Limiter:
        return Limiter(self._redis, self.name, **self._options)

    def _running(self) -> LimiterThread:
        with self._lock:
            if self._closed:
                raise LimiterClosed("the limiter is closed")
            if self._thread is None or self._thread.pid != os.getpid():
                self._thread = LimiterThread(self._new())
            return self._thread


class SyncSlot:
    """What :meth:`SyncLimiter.slot` returns. Each entry waits for a slot of its own."""

    def __init__(self, limiter: SyncLimiter, options: dict[str, Any]) -> None:
        self._limiter = limiter
        self._options = options
        self._entered = threading.local()

    def acquire(self) -> SyncPermit:
        """Wait, and hold the slot until the permit is released."""
        thread = self._limiter._running()
        return SyncPermit(thread, thread.limiter.slot(**self._options))

    def __enter__(self) -> Lease:
        permit = self.acquire()
        self._permits().append(permit)
        return permit.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._permits().pop().__exit__(kind, error, trace)

    def _permits(self) -> list[SyncPermit]:
        if not hasattr(self._entered, "permits"):
            self._entered.permits = []
        permits: list[SyncPermit] = self._entered.permits
        return permits


class SyncPermit:
    """A slot that is held until it is released: ``with permit as lease``, or :meth:`release`, in any thread."""

    def __init__(self, thread: LimiterThread, slot: LimiterSlot) -> None:
        granted: Future[Lease] = Future()
        self._leave: Future[BaseException | None] = Future()
        self._holding = thread.submit(hold(slot, granted, self._leave))
        self._outer: Lease | None = None
        self._released = False
        try:
            self.lease = granted.result()
        except BaseException:  # KeyboardInterrupt too
            self._leave.set_result(None)
            self._holding.cancel()
            raise

    def release(self) -> None:
        """Release the slot. May be called again. Raises LeaseLost if it could not be kept."""
        self._end(None)

    def __enter__(self) -> Lease:
        self._outer = current_lease.get()
        current_lease.set(self.lease)
        return self.lease

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        current_lease.set(self._outer)
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        if self._released:
            return
        self._released = True
        self._leave.set_result(error)
        try:
            self._holding.result()
        except CancelledError:
            raise LeaseLost("the limiter was closed while this slot was held") from error


def _as_async(client: redis_sync.Redis) -> redis_async.Redis:
    """An asyncio client with the same address, login and TLS; only the settings of its connections are used."""
    pool = client.connection_pool
    kind = _CONNECTIONS.get(pool.connection_class)
    if kind is None:
        raise TypeError(
            f"redis: {pool.connection_class.__name__} has no asyncio form here; pass a URL (sentinel:// for Sentinels)"
        )
    lent = redis_async.ConnectionPool(connection_class=kind)
    lent.connection_kwargs = dict(pool.connection_kwargs)
    return redis_async.Redis(connection_pool=lent)
