"""What a fault is: a small coroutine function that answers in its own way, or breaks the connection.

A fault gets a :class:`Wire` and either returns a response or never returns, because the connection is gone and the
handler is cancelled with it. A fault with ``done`` strikes after the work was done (a submitted Job exists by then,
the answer is lost or spoiled); one without, instead of the work.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from aiohttp import web

from brimful.runtime import json_bytes

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 s: closing sends RST


@dataclass(slots=True)
class Wire:
    """One request's connection, and what a fault may want to know."""

    http: web.BaseRequest | None
    """The request. None in a Job's own run, which meets no ``wired`` fault."""
    answer: Callable[[], dict[str, Any]]
    """The true answer."""
    release: Callable[[], None]
    """Frees the slot. Call it before the last byte: a client may send its next request at once."""
    retry_after: Callable[[float], dict[str, str]]
    """The ``Retry-After`` headers for so many seconds."""
    delivered: Callable[[], None]
    """Tell that the answer arrives whole after all."""

    @property
    def request(self) -> web.BaseRequest:
        assert self.http is not None, "a Job's own run has no connection"
        return self.http

    def body(self) -> bytes:
        return json_bytes.encode(self.answer())

    async def reset(self) -> NoReturn:
        """Cuts the connection with RST."""
        self.release()
        transport = self.request.transport
        if transport is not None:
            sock: socket.socket | None = transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            transport.abort()
        await self.until_gone()

    async def send_and_close(self, raw: bytes) -> NoReturn:
        """Writes ``raw`` past the HTTP server and closes in good order."""
        self.release()
        transport = self.request.transport
        if transport is not None:
            transport.write(raw)
            transport.close()
        await self.until_gone()

    async def until_gone(self) -> NoReturn:
        """Waits for the handler's cancellation."""
        await asyncio.get_running_loop().create_future()
        raise AssertionError("a handler whose connection is gone was not cancelled")


Strike = Callable[[Wire], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault with its parameter filled in."""

    name: str
    strike: Strike
    door: bool = False
    """Strikes on arrival, before a slot is taken."""
    done: bool = False
    """Strikes after the work was done."""
    wired: bool = False
    """Needs a connection, so that a Job's own run cannot meet it."""


@dataclass(frozen=True, slots=True)
class FaultKind:
    about: str
    make: Callable[[str | None], Fault]
    """A fault from its parameter. Raises ValueError."""


FAULTS: dict[str, FaultKind] = {}


def fault(
    name: str, about: str, *, door: bool = False, done: bool = False, wired: bool = False
) -> Callable[[Callable[[str | None], Strike]], Callable[[str | None], Strike]]:
    def register(build: Callable[[str | None], Strike]) -> Callable[[str | None], Strike]:
        def make(parameter: str | None) -> Fault:
            return Fault(name, build(parameter), door=door, done=done, wired=wired)

        FAULTS[name] = FaultKind(about, make)
        return build

    return register


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=json_bytes.encode(body), status=status, headers=headers, content_type="application/json")


def raw_response(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")


def whole_response(wire: Wire) -> web.Response:
    wire.delivered()
    return raw_response(wire.body())
