"""Faults of the connection after the work was done: resets, closes and truncated bodies."""

from __future__ import annotations

import asyncio

from aiohttp import web

from brimful_worker.gateway.faults.fault import FaultContext, fault
from brimful_worker.gateway.responses import raw_response


@fault("reset", "the connection reset before the headers", after_work=True, needs_connection=True)
async def _reset(context: FaultContext, parameter: str) -> web.StreamResponse:
    return await context.reset()


@fault("close", "the connection closed normally before the headers", after_work=True, needs_connection=True)
async def _close(context: FaultContext, parameter: str) -> web.StreamResponse:
    return await context.send_and_close(b"")


@fault("resetmid", "the connection reset in the middle of the body", after_work=True, needs_connection=True)
async def _reset_in_body(context: FaultContext, parameter: str) -> web.StreamResponse:
    body, transport = context.body(), context.request.transport
    if transport is not None:
        transport.write(_head(len(body)) + body[: len(body) // 2])
    await asyncio.sleep(0.02)  # an immediate reset could overtake the headers
    return await context.reset()


@fault("trunc", "a body shorter than its Content-Length", after_work=True, needs_connection=True)
async def _truncated(context: FaultContext, parameter: str) -> web.StreamResponse:
    body = context.body()
    return await context.send_and_close(_head(len(body)) + body[: len(body) // 2])


@fault("chunkcut", "a chunked body without its end", after_work=True, needs_connection=True)
async def _chunks_cut(context: FaultContext, parameter: str) -> web.StreamResponse:
    body = context.body()
    half = body[: len(body) // 2]
    return await context.send_and_close(_head(None) + b"%x\r\n%b\r\n" % (len(half), half))


@fault("cutjson", "half a JSON document in a valid HTTP response", after_work=True)
async def _json_cut(context: FaultContext, parameter: str) -> web.StreamResponse:
    body = context.body()
    return raw_response(body[: len(body) // 2])


def _head(length: int | None) -> bytes:
    size = b"Transfer-Encoding: chunked" if length is None else b"Content-Length: %d" % length
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + size + b"\r\n\r\n"
