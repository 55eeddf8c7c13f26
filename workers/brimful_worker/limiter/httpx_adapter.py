"""httpx within a limiter's slots. Works with httpx and httpx2, and imports neither.

Private parts of httpx 0.28.1 and httpx2 2.16.2:
    AsyncHTTPTransport, HTTPTransport: _pool
    of httpcore's pools: _network_backend
"""

from __future__ import annotations

from typing import Any, TypeVar

from brimful_worker.admission import LeaseLost
from brimful_worker.admission.lease import Lease, current_lease

T = TypeVar("T")
_SENT = ".send_request_headers.started"
_OVER = (".response_closed.complete", ".failed")


def mark_wire(transport: T) -> T:
    """The same transport, which knows slots from now on.

    ``httpx.AsyncClient(transport=mark_wire(httpx.AsyncHTTPTransport()))``, and with :class:`SyncLimiter`
    ``httpx.Client(transport=mark_wire(httpx.HTTPTransport()))``.

    A request that is made inside ``async with limiter`` calls :meth:`Lease.sent` before its first byte is written, and
    its connection is watched until its answer was read: it is shut when the slot is lost, even while the event loop is
    blocked. A request outside of such a block is sent as usual.

    The request raises StaleGrant when its grant came too late, and when it is the second one of its block, such as a
    redirect. Ask for a new slot then. With :class:`SyncLimiter` it raises LeaseLost once the slot is lost.
    """
    changed: Any = transport
    if hasattr(changed, "handle_async_request"):
        changed._pool._network_backend = _AsyncBackend(changed._pool._network_backend)
        changed.handle_async_request = _traced_async(changed.handle_async_request)
    else:
        changed._pool._network_backend = _Backend(changed._pool._network_backend)
        changed.handle_request = _traced(changed.handle_request)
    return transport


def _traced_async(handle: Any) -> Any:
    async def handle_async_request(request: Any) -> Any:
        if (lease := _lease()) is not None:
            theirs = request.extensions.get("trace")

            async def trace(event: str, info: dict[str, Any]) -> None:
                _mark(lease, event)
                if theirs is not None:
                    await theirs(event, info)

            request.extensions = {**request.extensions, "trace": trace}
        return await handle(request)

    return handle_async_request


def _traced(handle: Any) -> Any:
    def handle_request(request: Any) -> Any:
        _check_kept()
        if (lease := _lease()) is not None:
            theirs = request.extensions.get("trace")

            def trace(event: str, info: dict[str, Any]) -> None:
                _mark(lease, event)
                if theirs is not None:
                    theirs(event, info)

            request.extensions = {**request.extensions, "trace": trace}
        return handle(request)

    return handle_request


def _lease() -> Lease | None:
    lease = current_lease.get()
    return None if lease is None or lease.ended else lease


def _mark(lease: Lease, event: str) -> None:
    if event.endswith(_SENT):
        lease.sent()
    elif event.startswith("http") and event.endswith(_OVER):
        lease.unwatch()


def _watch(stream: Any) -> None:
    """The lease of the request that is written on this stream watches its connection."""
    if (lease := _lease()) is not None:
        lease.watch(stream)


def _check_kept() -> None:
    """A thread goes on after its slot was lost, as it cannot be cancelled: nothing more of it may be sent."""
    if (lease := current_lease.get()) is not None and lease.lost:
        raise LeaseLost("the slot was lost before its request was sent; ask for a new slot")


class _Wrapper:
    """What a wrapper does not define is that of the wrapped."""

    def __init__(self, wrapped: Any) -> None:
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


class _AsyncBackend(_Wrapper):
    """A network backend of httpcore with streams that are watched."""

    async def connect_tcp(self, *args: Any, **options: Any) -> Any:
        return _AsyncStream(await self._wrapped.connect_tcp(*args, **options))

    async def connect_unix_socket(self, *args: Any, **options: Any) -> Any:
        return _AsyncStream(await self._wrapped.connect_unix_socket(*args, **options))


class _AsyncStream(_Wrapper):
    async def write(self, *args: Any, **options: Any) -> None:
        _watch(self._wrapped)
        await self._wrapped.write(*args, **options)

    async def start_tls(self, *args: Any, **options: Any) -> Any:
        return _AsyncStream(await self._wrapped.start_tls(*args, **options))


class _Backend(_Wrapper):
    """As _AsyncBackend, blocking."""

    def connect_tcp(self, *args: Any, **options: Any) -> Any:
        return _Stream(self._wrapped.connect_tcp(*args, **options))

    def connect_unix_socket(self, *args: Any, **options: Any) -> Any:
        return _Stream(self._wrapped.connect_unix_socket(*args, **options))


class _Stream(_Wrapper):
    def write(self, *args: Any, **options: Any) -> None:
        _watch(self._wrapped)
        _check_kept()  # from here on its loss shuts the connection
        self._wrapped.write(*args, **options)

    def start_tls(self, *args: Any, **options: Any) -> Any:
        return _Stream(self._wrapped.start_tls(*args, **options))
