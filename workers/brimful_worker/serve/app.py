"""The HTTP application: its routes in one table, and what holds for every request."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
import uuid

from aiohttp import web
from aiohttp.typedefs import Handler

from brimful.runtime import tracing
from brimful.words.counted import counted
from brimful_worker.logs.fields import describe
from brimful_worker.metrics import catalogue as metrics
from brimful_worker.serve.batches.handlers import cancel_batch, create_batch, get_batch, list_batches
from brimful_worker.serve.caller import ANSWERED, CALLER, PROBES, PROVIDER_IDS, TOKENS_USED, Caller, identify
from brimful_worker.serve.callers.sampling import show_usage
from brimful_worker.serve.completions.handlers import chat_completions, completions
from brimful_worker.serve.completions.reading import REQUEST_ID, SHOWN_ID, callers_id
from brimful_worker.serve.files.handlers import create_file, delete_file, file_content, get_file, list_files
from brimful_worker.serve.front import FRONT, Front
from brimful_worker.serve.models import MODELS, Models, get_model, list_models
from brimful_worker.serve.page import handlers as page
from brimful_worker.serve.refusals import Refusal

log = logging.getLogger(__name__)

MAX_BODY = 64 * 2**20
"""Bytes of a request's body, decompressed; a file's are bounded by a setting."""
_UNCOUNTED = (*PROBES, page.EVENTS)
"""Probes would drown the callers; a page is open for hours."""
_ENDPOINTS = {"/v1/completions": "completions", "/v1/chat/completions": "chat"}
_DISCONNECTED = 499
"""nginx's status for a caller that went away; only in the log."""


async def healthz(http: web.Request) -> web.Response:
    """This process runs. Redis being away is no reason to restart it."""
    return web.Response(text="ok\n")


async def readyz(http: web.Request) -> web.Response:
    """Whether requests are let in."""
    reason = http.app[FRONT].gate.reason
    if reason is not None:
        return web.Response(text=f"{reason()}\n", status=503)
    return web.Response(text="ok\n")


ROUTES = (
    web.get("/healthz", healthz),
    web.get("/readyz", readyz),
    web.post("/v1/completions", completions),
    web.post("/v1/chat/completions", chat_completions),
    web.get("/usage", show_usage),
    web.get("/v1/models", list_models),
    web.get("/v1/models/{model:.+}", get_model),
    web.post("/v1/files", create_file),
    web.get("/v1/files", list_files),
    web.get("/v1/files/{file}", get_file),
    web.get("/v1/files/{file}/content", file_content),
    web.delete("/v1/files/{file}", delete_file),
    web.post("/v1/batches", create_batch),
    web.get("/v1/batches", list_batches),
    web.get("/v1/batches/{batch}", get_batch),
    web.post("/v1/batches/{batch}/cancel", cancel_batch),
    *page.ROUTES,
)


def make_app(front: Front) -> web.Application:
    app = web.Application(middlewares=[answer, page.open_to_all, identify], client_max_size=MAX_BODY)
    app[FRONT] = front
    app[MODELS] = Models()
    app.add_routes(ROUTES)
    return app


@web.middleware
async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Gives each request an id unless it brings one, gives each error OpenAI's form, and logs one line a request. Ids,
    errors and log hold no prompts."""
    request[REQUEST_ID] = f"req_{uuid.uuid4().hex}"
    request[SHOWN_ID] = callers_id(request) or request[REQUEST_ID]
    describe(request_id=request[SHOWN_ID])
    began, status = time.monotonic(), _DISCONNECTED
    metrics.SERVING.inc()
    try:
        with tracing.continued(request.headers.get):
            response = await _answer(request, handler)
        status = response.status
    except ConnectionError:  # the caller went away while it was written to
        response = web.Response()
    finally:
        if ANSWERED in request:
            status = 200
        _count(request, status, time.monotonic() - began)
    if not response.prepared:
        response.headers["x-request-id"] = request[SHOWN_ID]
        if request.app[FRONT].gate.draining or request.content.exception() is not None:
            response.force_close()  # of a damaged body, nobody knows where the next request begins
    return response


def _count(http: web.Request, status: int, seconds: float) -> None:
    metrics.SERVING.dec()
    if http.path in _UNCOUNTED:
        return
    endpoint = _ENDPOINTS.get(http.path, "other")
    metrics.SERVED.inc(endpoint, str(status) if status == _DISCONNECTED else f"{status // 100}xx")
    metrics.SERVED_SECONDS.observe(seconds, endpoint)
    caller = http.get(CALLER, Caller()).name
    used = f", {counted(http[TOKENS_USED], 'token')}" if TOKENS_USED in http else ""
    of = f", caller {caller}{used}" if caller else ""
    path, ids = _place(http), http.get(PROVIDER_IDS, [])
    extra: dict[str, object] = {"method": http.method, "path": path, "status": status, "seconds": round(seconds, 3)}
    extra |= {"provider_request_ids": ids, **({"caller": caller} if caller else {})}
    log.info("%s %s %d in %.3f s, %s%s", http.method, path, status, seconds, http[SHOWN_ID], of, extra=extra)


async def _answer(http: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(http)
    except Refusal as refusal:
        if http.path in _ENDPOINTS and CALLER in http:
            http.app[FRONT].recent.refused(http[CALLER].name, refusal.status, refusal.code, http.path)
        return refusal.response()
    except web.HTTPException as error:
        return _refused(http, error).response()
    except (asyncio.CancelledError, ConnectionError):
        raise
    except Exception as error:
        # The text of an exception may contain a prompt, so only its type and place are logged.
        name = type(error).__name__
        log.error("the front door failed: %s\n%s", name, "".join(traceback.format_tb(error.__traceback__)))
        return Refusal(500, f"brimful's own fault ({name}): see the server's log", "internal").response()


def _refused(http: web.Request, error: web.HTTPException) -> Refusal:
    match error.status:
        case 404:
            return Refusal(404, f"Unknown request URL: {http.method} {http.path[:200]}.", "unknown_url")
        case 405:
            allowed = error.headers.get("Allow", "")
            message = f"Not allowed to {http.method} on {http.path[:200]} (only {allowed})."
            return Refusal(405, message, "method_not_allowed", headers={"Allow": allowed})
        case 413:
            return Refusal(413, f"the body is larger than {MAX_BODY:,} bytes", "request_too_large")
    return Refusal(error.status, error.reason)


def _place(http: web.Request) -> str:
    """The route's own path: an unknown one is the caller's text, and may hold anything."""
    resource = http.match_info.route.resource
    return "(no such path)" if resource is None else resource.canonical
