"""What a fault is: a coroutine function that answers a request in its own way, or breaks its connection.

It returns a response, or never returns, because the server cancels the handler of a broken connection. A fault with
``after_work`` is injected after the work (a submitted Job exists, only its answer is lost or damaged); one without,
instead of the work.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from aiohttp import web

from brimful.runtime import json_bytes
from brimful_worker.gateway.responses import raw_response

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 s: closing sends RST


def _nothing() -> None:
    pass


@dataclass(slots=True)
class FaultContext:
    """The request that meets a fault, and what the fault may do. The defaults are those of a request without work."""

    http: web.BaseRequest | None
    """None for a Job's own run, which meets no fault that ``needs_connection``."""
    retry_after: Callable[[float], dict[str, str]]
    """The ``Retry-After`` header for a number of seconds."""
    answer: Callable[[], Any] = dict
    """The true answer."""
    free_slot: Callable[[], None] = _nothing
    """Call it before the last byte is written: the client may send its next request at once."""
    deliver: Callable[[], None] = _nothing
    """Call it if the true answer arrives complete."""

    @property
    def request(self) -> web.BaseRequest:
        assert self.http is not None, "a Job's own run has no connection"
        return self.http

    def body(self) -> bytes:
        return json_bytes.encode(self.answer())

    def whole_response(self) -> web.Response:
        """The true answer."""
        self.deliver()
        return raw_response(self.body())

    async def reset(self) -> NoReturn:
        """Abort the connection with RST."""
        self.free_slot()
        transport = self.request.transport
        if transport is not None:
            sock: socket.socket | None = transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            transport.abort()
        await self.until_disconnected()

    async def send_and_close(self, raw: bytes) -> NoReturn:
        """Write ``raw`` without the HTTP server, and close the connection normally."""
        self.free_slot()
        transport = self.request.transport
        if transport is not None:
            transport.write(raw)
            transport.close()
        await self.until_disconnected()

    async def until_disconnected(self) -> NoReturn:
        """Wait until the handler is cancelled."""
        await asyncio.get_running_loop().create_future()
        raise AssertionError("the handler of a closed connection was not cancelled")


Inject = Callable[[FaultContext], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault with its parameter."""

    name: str
    inject: Inject
    on_arrival: bool = False
    """Injected before a slot is taken."""
    after_work: bool = False
    needs_connection: bool = False
    """A Job's own run cannot meet it."""


@dataclass(frozen=True, slots=True)
class FaultKind:
    about: str
    make: Callable[[str], Fault]
    """A fault from its parameter, which may be empty. Raises ValueError for an invalid one."""


FAULTS: dict[str, FaultKind] = {}
"""All known faults by name; the modules of this package register theirs when they are imported."""

Build = Callable[..., Awaitable[web.StreamResponse]]


def fault(
    name: str, about: str, parse: Callable[[str], Any] = str, default: Any = None, **flags: bool
) -> Callable[[Build], Build]:
    """Register a coroutine function of the context and the parameter. ``flags`` are :class:`Fault`'s."""

    def register(function: Build) -> Build:
        def make(parameter: str) -> Fault:
            return Fault(name, partial(function, parameter=parse(parameter) if parameter else default), **flags)

        FAULTS[name] = FaultKind(about, make)
        return function

    return register
