"""Faults in place of the work: error statuses of every kind, junk, and silence."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from brimful_worker.gateway.refusal import error_body
from brimful_worker.gateway.wire import Strike, Wire, fault, json_response, whole_response

_HTML = b"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body><h1>502 Bad Gateway</h1></body></html>\r\n"


def _status(name: str, status: int, code: Any, message: str, *, door: bool = False) -> None:
    @fault(name, f"{status} {code or ''}".strip(), door=door)
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


@fault("429", "429 rate_limited with Retry-After (=seconds, default 1)", door=True)
def _429(parameter: str | None) -> Strike:
    seconds = float(parameter or 1)

    async def strike(wire: Wire) -> web.StreamResponse:
        body = error_body(429, "rate_limited", "Too many request starts.")
        return json_response(body, 429, wire.retry_after(seconds))

    return strike


@fault("502html", "502 with an HTML page")
def _502html(parameter: str | None) -> Strike:
    async def strike(wire: Wire) -> web.StreamResponse:
        return web.Response(body=_HTML, status=502, content_type="text/html")

    return strike


@fault("html200", "an HTML page under status 200")
def _html200(parameter: str | None) -> Strike:
    async def strike(wire: Wire) -> web.StreamResponse:
        return web.Response(body=_HTML, content_type="text/html")

    return strike


@fault("empty", "status 200 with an empty body")
def _empty(parameter: str | None) -> Strike:
    async def strike(wire: Wire) -> web.StreamResponse:
        return web.Response(content_type="application/json")

    return strike


@fault("huge", "status 200 with a body of junk (=bytes, default 100 MB)", wired=True)
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


@fault("redirect", "307 to =URL (default the same path under /moved)", door=True, wired=True)
def _redirect(parameter: str | None) -> Strike:
    async def strike(wire: Wire) -> web.StreamResponse:
        return web.Response(status=307, headers={"Location": parameter or f"/moved{wire.request.path_qs}"})

    return strike


@fault("hang", "no answer until the client goes (or for =seconds, then the true one)", done=True)
def _hang(parameter: str | None) -> Strike:
    seconds = None if parameter is None else float(parameter)

    async def strike(wire: Wire) -> web.StreamResponse:
        if seconds is None:
            await wire.until_gone()
        else:
            await asyncio.sleep(seconds)
        return whole_response(wire)

    return strike
