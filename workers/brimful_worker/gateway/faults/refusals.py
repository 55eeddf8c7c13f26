"""Faults that replace the answer of a request, which is not sampled: error statuses, junk, and silence."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from brimful_worker.gateway.faults.fault import FaultContext, fault
from brimful_worker.gateway.responses import error_body, json_response

_HTML = b"<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body><h1>502 Bad Gateway</h1></body></html>\r\n"


def _status(name: str, status: int, code: Any, message: str, *, on_arrival: bool = False) -> None:
    """A fault whose parameter, if any, is the value of ``Retry-After``."""

    @fault(name, f"{status} {code or ''}".strip(), on_arrival=on_arrival)
    async def inject(context: FaultContext, parameter: str | None) -> web.StreamResponse:
        headers = {} if parameter is None else {"Retry-After": parameter}
        return json_response(error_body(status, code, message), status, headers)


_status("400", 400, "invalid_value", "Invalid request.", on_arrival=True)
_status("400key", 400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key.", on_arrival=True)
_status("401", 401, "invalid_api_key", "Incorrect API key provided.", on_arrival=True)
_status("402", 402, "insufficient_quota", "Your Budget is at its end.", on_arrival=True)
_status("403", 403, "permission_denied", "This key may not do that.", on_arrival=True)
_status("404", 404, "model_not_found", "The model does not exist.", on_arrival=True)
_status("429bare", 429, "rate_limited", "Too many requests.", on_arrival=True)
_status("429quota", 429, "insufficient_quota", "You exceeded your current quota.", on_arrival=True)
_status("filter", 400, "content_filter", "The prompt was refused by the content filter.", on_arrival=True)
_status("500", 500, None, "The server had an error while processing your request.")
_status("500num", 500, 500, "An error with a numeric code.")
_status("503", 503, "overloaded", "The engine is overloaded.")
_status("504", 504, "timeout", "The engine took too long.")
_status("error200", 200, "internal", "An error object under status 200.")


@fault("429", "429 rate_limited with Retry-After (=seconds, default 1)", float, 1.0, on_arrival=True)
async def _429(context: FaultContext, parameter: float) -> web.StreamResponse:
    body = error_body(429, "rate_limited", "Too many request starts.")
    return json_response(body, 429, context.retry_after(parameter))


@fault("502html", "502 with an HTML page")
async def _502_html(context: FaultContext, parameter: str) -> web.StreamResponse:
    return web.Response(body=_HTML, status=502, content_type="text/html")


@fault("html200", "an HTML page under status 200")
async def _200_html(context: FaultContext, parameter: str) -> web.StreamResponse:
    return web.Response(body=_HTML, content_type="text/html")


@fault("empty", "status 200 with an empty body")
async def _empty(context: FaultContext, parameter: str) -> web.StreamResponse:
    return web.Response(content_type="application/json")


@fault("huge", "status 200 with a body of junk (=bytes, default 100 MB)", int, 100_000_000, needs_connection=True)
async def _huge(context: FaultContext, parameter: int) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.content_length = parameter
    await response.prepare(context.request)
    context.free_slot()
    for start in range(0, parameter, 65536):
        await response.write(b" " * min(65536, parameter - start))
    await response.write_eof()
    return response


@fault("redirect", "307 to =URL (default the same path under /moved)", on_arrival=True, needs_connection=True)
async def _redirect(context: FaultContext, parameter: str | None) -> web.StreamResponse:
    return web.Response(status=307, headers={"Location": parameter or f"/moved{context.request.path_qs}"})


@fault("hang", "no answer until the client disconnects (or for =seconds, then the true one)", float, after_work=True)
async def _hang(context: FaultContext, parameter: float | None) -> web.StreamResponse:
    if parameter is None:
        await context.until_disconnected()
    else:
        await asyncio.sleep(parameter)
    return context.whole_response()
