"""What can go wrong: each fault a small coroutine function that answers in its own way, or breaks the connection.

A fault gets a :class:`Wire` and either returns a response or never returns, because the connection is gone and the
handler is cancelled with it. A fault with ``done`` strikes after the work was done (a submitted Job exists by then,
the answer is lost or spoiled); one without, instead of the work.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from aiohttp import web

from brimful_worker.local.gateway.refusal import error_body
from brimful_worker.local.gateway.text import dump_json

_HTML = b"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body><h1>502 Bad Gateway</h1></body></html>\r\n"
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
        return dump_json(self.answer())

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


def _kind(
    name: str, about: str, *, door: bool = False, done: bool = False, wired: bool = False
) -> Callable[[Callable[[str | None], Strike]], Callable[[str | None], Strike]]:
    def register(build: Callable[[str | None], Strike]) -> Callable[[str | None], Strike]:
        def make(parameter: str | None) -> Fault:
            return Fault(name, build(parameter), door=door, done=done, wired=wired)

        FAULTS[name] = FaultKind(about, make)
        return build

    return register


def json_response(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=dump_json(body), status=status, headers=headers, content_type="application/json")


# -- answers in place of the work -----------------------------------------------------------------------------------


def _status(name: str, status: int, code: Any, message: str, *, door: bool = False) -> None:
    @_kind(name, f"{status} {code or ''}".strip(), door=door)
    def build(parameter: str | None) -> Strike:
        headers = {} if parameter is None else {"Retry-After": parameter}

        async def strike(wire: Wire) -> web.StreamResponse:
            return json_response(error_body(status, code, message), status, headers)

        return strike


_status("400", 400, "invalid_value", "Invalid request.", door=True)
_status("401", 401, "invalid_api_key", "Incorrect API key provided.", door=True)
_status("402", 402, "insufficient_quota", "Your Budget is at its end.", door=True)
_status("403", 403, "permission_denied", "This key may not do that.", door=True)
_status("404", 404, "model_not_found", "The model does not exist.", door=True)
_status("429bare", 429, "rate_limited", "Too many requests.", door=True)
_status("429quota", 429, "insufficient_quota", "You exceeded your current quota.", door=True)
_status("filter", 400, "content_filter", "The prompt was refused by the content filter.", door=True)
_status("500", 500, None, "The server had an error while processing your request.")
_status("500num", 500, 500, "An error with a numeric code.")
_status("503", 503, "overloaded", "The engine is overloaded.")
_status("504", 504, "timeout", "The engine took too long.")
_status("error200", 200, "internal", "An error object under status 200.")


@_kind("429", "429 rate_limited with Retry-After (=seconds, default 1)", door=True)
def _429(parameter: str | None) -> Strike:
    seconds = float(parameter or 1)

    async def strike(wire: Wire) -> web.StreamResponse:
        body = error_body(429, "rate_limited", "Too many request starts.")
        return json_response(body, 429, wire.retry_after(seconds))

    return strike


@_kind("502html", "502 with an HTML page")
def _502html(parameter: str | None) -> Strike:
    async def strike(wire: Wire) -> web.StreamResponse:
        return web.Response(body=_HTML, status=502, content_type="text/html")

    return strike


@_kind("html200", "an HTML page under status 200")
def _html200(parameter: str | None) -> Strike:
    async def strike(wire: Wire) -> web.StreamResponse:
        return web.Response(body=_HTML, content_type="text/html")

    return strike


@_kind("empty", "status 200 with an empty body")
def _empty(parameter: str | None) -> Strike:
    async def strike(wire: Wire) -> web.StreamResponse:
        return web.Response(content_type="application/json")

    return strike


@_kind("huge", "status 200 with a body of junk (=bytes, default 100 MB)", wired=True)
def _huge(parameter: str | None) -> Strike:
    size = int(parameter or 100_000_000)

    async def strike(wire: Wire) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.content_length = size
        await response.prepare(wire.request)
        wire.release()
        for start in range(0, size, 65536):
            await response.write(b" " * min(65536, size - start))
        await response.write_eof()
        return response

    return strike


@_kind("redirect", "307 to =URL (default the same path under /moved)", door=True, wired=True)
def _redirect(parameter: str | None) -> Strike:
    async def strike(wire: Wire) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": parameter or f"/moved{wire.request.path_qs}"})

    return strike


@_kind("hang", "no answer until the client goes (or for =seconds, then the true one)", done=True)
def _hang(parameter: str | None) -> Strike:
    seconds = None if parameter is None else float(parameter)

    async def strike(wire: Wire) -> web.StreamResponse:
        if seconds is None:
            await wire.until_gone()
        else:
            await asyncio.sleep(seconds)
        return _whole(wire)

    return strike


# -- broken connections ---------------------------------------------------------------------------------------------


@_kind("reset", "the connection reset before the headers", done=True, wired=True)
def _reset(parameter: str | None) -> Strike:
    async def strike(wire: Wire) -> web.StreamResponse:
        return await wire.reset()

    return strike


@_kind("close", "the connection closed in good order before the headers", done=True, wired=True)
def _close(parameter: str | None) -> Strike:
    async def strike(wire: Wire) -> web.StreamResponse:
        return await wire.send_and_close(b"")

    return strike


@_kind("resetmid", "the connection reset in the middle of the body", done=True, wired=True)
def _resetmid(parameter: str | None) -> Strike:
    async def strike(wire: Wire) -> web.StreamResponse:
        body, transport = wire.body(), wire.request.transport
        if transport is not None:
            transport.write(_head(len(body)) + body[: len(body) // 2])
        await asyncio.sleep(0.02)  # a reset at once could overtake the headers
        return await wire.reset()

    return strike


@_kind("trunc", "a body shorter than its Content-Length", done=True, wired=True)
def _trunc(parameter: str | None) -> Strike:
    async def strike(wire: Wire) -> web.StreamResponse:
        body = wire.body()
        return await wire.send_and_close(_head(len(body)) + body[: len(body) // 2])

    return strike


@_kind("chunkcut", "a chunked body without its end", done=True, wired=True)
def _chunkcut(parameter: str | None) -> Strike:
    async def strike(wire: Wire) -> web.StreamResponse:
        body = wire.body()
        half = body[: len(body) // 2]
        return await wire.send_and_close(_head(None) + b"%x\r\n%b\r\n" % (len(half), half))

    return strike


@_kind("cutjson", "half a JSON document, as HTTP in good order", done=True)
def _cutjson(parameter: str | None) -> Strike:
    async def strike(wire: Wire) -> web.StreamResponse:
        body = wire.body()
        return _raw(body[: len(body) // 2])

    return strike


def _head(length: int | None) -> bytes:
    size = b"Transfer-Encoding: chunked" if length is None else b"Content-Length: %d" % length
    return b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + size + b"\r\n\r\n"


# -- spoiled answers ------------------------------------------------------------------------------------------------


def _spoiled(name: str, about: str, spoil: Callable[[dict[str, Any], str | None], Any]) -> None:
    @_kind(name, about, done=True)
    def build(parameter: str | None) -> Strike:
        async def strike(wire: Wire) -> web.StreamResponse:
            answer = wire.answer()
            found = spoil(answer, parameter)
            return json_response(answer if found is None else found)

        return strike


def _short(answer: dict[str, Any], parameter: str | None) -> None:
    choices = answer.get("choices", [])
    del choices[max(0, len(choices) - int(parameter or 1)) :]


def _long(answer: dict[str, Any], parameter: str | None) -> None:
    choices = answer.get("choices", [])
    for _ in range(int(parameter or 1)):
        choices.append({**choices[-1], "index": len(choices)})


def _nulltext(answer: dict[str, Any], parameter: str | None) -> None:
    first = answer["choices"][0]
    if "message" in first:
        first["message"]["content"] = None
    else:
        first["text"] = None


_spoiled("nullchoices", "choices is null", lambda answer, _: {**answer, "choices": None})
_spoiled("short", "the last choice (=N: the last N) missing", _short)
_spoiled("long", "one choice (=N: N) too many", _long)
_spoiled("nulltext", "the first choice's text is null", _nulltext)
_spoiled("nousage", "usage is null", lambda answer, _: {**answer, "usage": None})
_spoiled("array", "a JSON array in place of the object", lambda answer, _: [answer])


@_kind("badutf8", "JSON with bytes that are no UTF-8", done=True)
def _badutf8(parameter: str | None) -> Strike:
    async def strike(wire: Wire) -> web.StreamResponse:
        body = wire.body()
        return _raw(body.replace(b'": "', b'":"').replace(b'":"', b'":"\xff\xfe'))

    return strike


@_kind("400completion", "a whole Completion under status 400", done=True)
def _400completion(parameter: str | None) -> Strike:
    async def strike(wire: Wire) -> web.StreamResponse:
        return json_response(wire.answer(), 400)

    return strike


# -- the true answer, in an unusual way -----------------------------------------------------------------------------


@_kind("slow", "=seconds (default 2) more before the answer", done=True)
def _slow(parameter: str | None) -> Strike:
    seconds = float(parameter or 2)

    async def strike(wire: Wire) -> web.StreamResponse:
        await asyncio.sleep(seconds)
        return _whole(wire)

    return strike


@_kind("drip", "the body in ten pieces over =seconds (default 2)", done=True, wired=True)
def _drip(parameter: str | None) -> Strike:
    seconds = float(parameter or 2)

    async def strike(wire: Wire) -> web.StreamResponse:
        body = wire.body()
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.content_length = len(body)
        await response.prepare(wire.request)
        step = -(-len(body) // 10)
        for start in range(0, len(body), step):
            await asyncio.sleep(seconds / 10)
            if start + step >= len(body):
                wire.release()
                wire.delivered()
            await response.write(body[start : start + step])
        await response.write_eof()
        return response

    return strike


@_kind("gzip", "the answer gzipped", done=True)
def _gzip(parameter: str | None) -> Strike:
    async def strike(wire: Wire) -> web.StreamResponse:
        response = _whole(wire)
        response.body = gzip.compress(wire.body(), 1)
        response.headers["Content-Encoding"] = "gzip"
        return response

    return strike


@_kind("spaced", "the answer as JSON with white space, escapes and a byte order mark", done=True)
def _spaced(parameter: str | None) -> Strike:
    async def strike(wire: Wire) -> web.StreamResponse:
        wire.delivered()
        return _raw(b"\xef\xbb\xbf\n " + json.dumps(wire.answer(), indent=2).encode())

    return strike


@_kind("stale", "the answer, and then the kept-alive connection closed without a word", done=True, wired=True)
def _stale(parameter: str | None) -> Strike:
    async def strike(wire: Wire) -> web.StreamResponse:
        if (transport := wire.request.transport) is not None:
            asyncio.get_running_loop().call_later(0.02, transport.close)
        return _whole(wire)

    return strike


@_kind("jobfail", "the Job fails: its result is a 500 error object")
def _jobfail(parameter: str | None) -> Strike:
    async def strike(wire: Wire) -> web.StreamResponse:  # a Job's run has no wire: jobs.py asks only whether it fails
        return json_response(error_body(500, "job_failed", "The Job failed."), 500)

    return strike


def _raw(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")


def _whole(wire: Wire) -> web.Response:
    wire.delivered()
    return _raw(wire.body())
