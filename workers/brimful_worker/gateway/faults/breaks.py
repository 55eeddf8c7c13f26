"""Faults of the connection: resets, closes and bodies that end too soon. The work was done all the same."""

from __future__ import annotations

import asyncio

from aiohttp import web

from brimful_worker.gateway.wire import Strike, Wire, fault, raw_response


@fault("reset", "the connection reset before the headers", done=True, wired=True)
def _reset(parameter: str | None) -> Strike:
    async def strike(wire: Wire) -> web.StreamResponse:
        return await wire.reset()

    return strike


@fault("close", "the connection closed in good order before the headers", done=True, wired=True)
def _close(parameter: str | None) -> Strike:
    async def strike(wire: Wire) -> web.StreamResponse:
        return await wire.send_and_close(b"")

    return strike


@fault("resetmid", "the connection reset in the middle of the body", done=True, wired=True)
def _resetmid(parameter: str | None) -> Strike:
    async def strike(wire: Wire) -> web.StreamResponse:
        body, transport = wire.body(), wire.request.transport
        if transport is not None:
            transport.write(_head(len(body)) + body[: len(body) // 2])
        await asyncio.sleep(0.02)  # a reset at once could overtake the headers
        return await wire.reset()

    return strike


@fault("trunc", "a body shorter than its Content-Length", done=True, wired=True)
def _trunc(parameter: str | None) -> Strike:
    async def strike(wire: Wire) -> web.StreamResponse:
        body = wire.body()
        return await wire.send_and_close(_head(len(body)) + body[: len(body) // 2])

    return strike


@fault("chunkcut", "a chunked body without its end", done=True, wired=True)
def _chunkcut(parameter: str | None) -> Strike:
    async def strike(wire: Wire) -> web.StreamResponse:
        body = wire.body()
        half = body[: len(body) // 2]
        return await wire.send_and_close(_head(None) + b"%x\r\n%b\r\n" % (len(half), half))

    return strike


@fault("cutjson", "half a JSON document, as HTTP in good order", done=True)
def _cutjson(parameter: str | None) -> Strike:
    async def strike(wire: Wire) -> web.StreamResponse:
        body = wire.body()
        return raw_response(body[: len(body) // 2])

    return strike


def _head(length: int | None) -> bytes:
    size = b"Transfer-Encoding: chunked" if length is None else b"Content-Length: %d" % length
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + size + b"\r\n\r\n"
