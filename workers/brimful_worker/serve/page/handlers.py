"""The page's files, which anybody may load, and its figures, for those who may ask this front door."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from importlib import resources
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler

from brimful_worker.serve.caller import CALLER, identify
from brimful_worker.serve.front import FRONT
from brimful_worker.serve.refusals import Refusal

EVENTS = "/events"
ASSETS = resources.files("brimful_worker.serve.page") / "assets"
_KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
FILES = {
    "/": "page.html",
    **{f"/page/{name}": name for name in ("style.css", "app.js", "feed.js", "chart.js", "parts.js", "icon.svg")},
}
"""Path → file of ``assets``."""
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_MOST_VIEWERS = 100
_STALLED_S = 60.0


async def page_file(http: web.Request) -> web.Response:
    name = FILES[http.path]
    body = (ASSETS / name).read_bytes()
    return web.Response(body=body, headers=HEADERS, content_type=_KINDS[name.rpartition(".")[2]], charset="utf-8")


@web.middleware
async def open_to_all(request: web.Request, handler: Handler) -> web.StreamResponse:
    """The page's files hold no figures: a caller signs in on the page, since a browser sends no token by itself."""
    return await (page_file(request) if request.match_info.handler is page_file else handler(request))


async def events(http: web.Request) -> web.StreamResponse:
    """The fleet's figures once a second, until the caller's token is revoked or the front door ends."""
    feed = http.app[FRONT].feed
    if not http[CALLER].name and not named_as_local(http.host):
        # Another site, once its name leads to this machine, could read what its visitor may see here.
        raise Refusal(403, "without a token, the page is served as 127.0.0.1 or localhost only", "another_host")
    if feed.viewers >= _MOST_VIEWERS:
        raise Refusal(503, f"{_MOST_VIEWERS} pages are open already", "too_many_viewers", headers={"Retry-After": "10"})
    headers = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    stream = web.StreamResponse(headers=headers)
    await stream.prepare(http)
    async with contextlib.aclosing(feed.events()) as found:
        async for event in found:
            try:
                await identify(http, _still_valid)
                async with asyncio.timeout(_STALLED_S):
                    await stream.write(event)
            except Refusal:
                break
            except TimeoutError:
                if http.transport is not None:
                    http.transport.abort()
                raise ConnectionResetError("the browser does not read its page's figures") from None
    return stream


async def _still_valid(http: web.Request) -> web.StreamResponse:
    return web.Response()


def named_as_local(host: str) -> bool:
    with contextlib.suppress(ValueError):
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    return False


ROUTES = (*(web.get(path, page_file) for path in FILES), web.get(EVENTS, events, allow_head=False))
