"""Faults that a sampled request meets: damaged answers, the true answer in an unusual form, and broken connections."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable
from typing import Any

from aiohttp import web

from brimful_worker.gateway.faults.fault import FaultContext, fault
from brimful_worker.gateway.responses import error_body, json_response, raw_response


def _damaged(name: str, about: str, damage: Callable[[dict[str, Any], int], Any]) -> None:
    """``damage`` changes the answer in place or returns another one."""

    @fault(name, about, int, 1, after_work=True)
    async def inject(context: FaultContext, parameter: int) -> web.StreamResponse:
        answer = context.answer()
        replaced = damage(answer, parameter)
        return json_response(answer if replaced is None else replaced)


def _remove_choices(answer: dict[str, Any], count: int) -> None:
    choices = answer.get("choices", [])
    del choices[max(0, len(choices) - count) :]


def _add_choices(answer: dict[str, Any], count: int) -> None:
    choices = answer.get("choices", [])
    for _ in range(count):
        choices.append({**choices[-1], "index": len(choices)})


def _null_first_text(answer: dict[str, Any], _: int) -> None:
    first = answer["choices"][0]
    if "message" in first:
        first["message"]["content"] = None
    else:
        first["text"] = None


_damaged("nullchoices", "choices is null", lambda answer, _: {**answer, "choices": None})
_damaged("short", "the last choice (=N: the last N) missing", _remove_choices)
_damaged("long", "one choice (=N: N) too many", _add_choices)
_damaged("nulltext", "the first choice's text is null", _null_first_text)
_damaged("nousage", "usage is null", lambda answer, _: {**answer, "usage": None})
_damaged("array", "a JSON array in place of the object", lambda answer, _: [answer])


@fault("badutf8", "JSON with bytes that are not UTF-8", after_work=True)
async def _bad_utf8(context: FaultContext, parameter: str) -> web.StreamResponse:
    body = context.body()
    return raw_response(body.replace(b'": "', b'":"').replace(b'":"', b'":"\xff\xfe'))


@fault("400completion", "a whole Completion under status 400", after_work=True)
async def _completion_under_400(context: FaultContext, parameter: str) -> web.StreamResponse:
    return json_response(context.answer(), 400)


# -- the true answer in an unusual form -----------------------------------------------------------------------------


@fault("slow", "=seconds (default 2) more before the answer", float, 2.0, after_work=True)
async def _slow(context: FaultContext, parameter: float) -> web.StreamResponse:
    await asyncio.sleep(parameter)
    return context.whole_response()


@fault("drip", "the body in ten pieces over =seconds (default 2)", float, 2.0, after_work=True, needs_connection=True)
async def _drip(context: FaultContext, parameter: float) -> web.StreamResponse:
    body = context.body()
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.content_length = len(body)
    await response.prepare(context.request)
    step = -(-len(body) // 10)
    for start in range(0, len(body), step):
        await asyncio.sleep(parameter / 10)
        if start + step >= len(body):
            context.free_slot()
            context.deliver()
        await response.write(body[start : start + step])
    await response.write_eof()
    return response


@fault("gzip", "the answer gzipped", after_work=True)
async def _gzip(context: FaultContext, parameter: str) -> web.StreamResponse:
    response = context.whole_response()
    response.body = gzip.compress(context.body(), 1)
    response.headers["Content-Encoding"] = "gzip"
    return response


@fault("spaced", "the answer as JSON with white space, escapes and a byte order mark", after_work=True)
async def _spaced(context: FaultContext, parameter: str) -> web.StreamResponse:
    context.deliver()
    return raw_response(b"\xef\xbb\xbf\n " + json.dumps(context.answer(), indent=2).encode())


@fault("stale", "the answer; then the idle connection is closed", after_work=True, needs_connection=True)
async def _stale(context: FaultContext, parameter: str) -> web.StreamResponse:
    if (transport := context.request.transport) is not None:
        asyncio.get_running_loop().call_later(0.02, transport.close)
    return context.whole_response()


@fault("longheaders", "the answer with a header of =bytes (default 8000)", int, 8000, after_work=True)
async def _long_header(context: FaultContext, parameter: int) -> web.StreamResponse:
    response = context.whole_response()
    response.headers["x-debug"] = "h" * parameter
    return response


@fault("manyheaders", "the answer with =count further headers (default 150)", int, 150, after_work=True)
async def _many_headers(context: FaultContext, parameter: int) -> web.StreamResponse:
    response = context.whole_response()
    response.headers.update({f"x-debug-{number}": "h" * 40 for number in range(parameter)})
    return response


@fault("errorevent", "an error event in the middle of a stream; otherwise 500", after_work=True)
async def _error_event(context: FaultContext, parameter: str) -> web.StreamResponse:
    return json_response(error_body(500, "server_error", "The server had an error."), 500)


@fault("jobfail", "the Job fails: its result is a 500 error object")
async def _job_fails(context: FaultContext, parameter: str) -> web.StreamResponse:
    return json_response(error_body(500, "job_failed", "The Job failed."), 500)


# -- the connection breaks ------------------------------------------------------------------------------------------


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
