"""Who asks: resolved once for each request, by a middleware; apart, since every handler and no other room needs it."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Handler


@dataclass(frozen=True, slots=True)
class Caller:
    """One caller of the front door."""

    name: str = ""
    """Empty: somebody on this machine, without a token."""


CALLER = web.RequestKey("caller", Caller)
_ANYBODY = Caller()


@web.middleware
async def identify(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Without tokens, whoever reaches the loopback address may ask."""
    request[CALLER] = _ANYBODY
    return await handler(request)
