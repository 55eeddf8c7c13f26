"""Authenticates each request: a middleware finds the caller by its token."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web
from aiohttp.typedefs import Handler

from brimful.state.callers.tokens import CallerRecord
from brimful_worker.serve.front import FRONT
from brimful_worker.serve.records import Owner

PROBES = ("/healthz", "/readyz")
"""What everybody may ask: they say only whether this process runs, and lets requests in."""
_SCHEME = "bearer "


@dataclass(frozen=True, slots=True)
class Caller:
    """One caller of the front door."""

    name: str = ""
    """Empty: somebody on this machine, without a token."""
    record: CallerRecord | None = None

    @property
    def owner(self) -> Owner:
        return Owner(self.name, "" if self.record is None else self.record.id)


CALLER = web.RequestKey("caller", Caller)
TOKENS_USED = web.RequestKey("tokens_used", int)
"""What sampling the request took, once that is known."""
PROVIDER_IDS = web.RequestKey("provider_ids", list)
"""The provider's own ids of its attempts, once they have ended."""
ANSWERED = web.RequestKey("answered", bool)
"""The caller has a whole stream. Whoever hangs up then has not gone away."""
_ANYBODY = Caller()


@web.middleware
async def identify(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuses whoever has no valid token. Without any tokens, whoever reaches the loopback address may ask."""
    request[CALLER] = _ANYBODY if request.path in PROBES else _resolve(request)
    return await handler(request)


def _resolve(http: web.Request) -> Caller:
    front = http.app[FRONT]
    header = http.headers.get("Authorization", "")
    token = header[len(_SCHEME) :].strip() if header[: len(_SCHEME)].lower() == _SCHEME else None
    record = front.callers.resolve(token, front.process.key.settings.api_key.get_secret_value())
    return _ANYBODY if record is None else Caller(record.name, record)
