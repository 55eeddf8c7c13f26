"""HTTP routes of Jobs: submit, poll, fetch the result, cancel. The Jobs themselves are in ``jobs.py``."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from aiohttp import web

from brimful.runtime import json_bytes
from brimful_worker.gateway.core import GatewayCore
from brimful_worker.gateway.faults.fault import Fault, FaultContext
from brimful_worker.gateway.generation import run_job
from brimful_worker.gateway.jobs.jobs import Result
from brimful_worker.gateway.responses import Refusal, json_response
from brimful_worker.gateway.sample_request import SampleRequest


async def job_routes(core: GatewayCore, http: web.BaseRequest, path: list[str]) -> web.StreamResponse | None:
    """Handle ``/completion-jobs/PATH``; None for an unknown route. Raises Refusal.

    A submission is an arrival, like a completion; the other routes take no slot, and a start only if polls count.
    """
    jobs = core.jobs
    match http.method, path:
        case "POST", []:
            return await core.receive(http, "submit", partial(_create, core))
        case "GET", [id]:
            return await _respond(core, http, "poll", lambda: (200, jobs.view(jobs.get(id))))
        case "GET", [id, "result"]:
            return await _respond(core, http, "result", lambda: jobs.result(id))
        case ("POST", [id, "cancel"]) | ("DELETE", [id]):
            return await _respond(core, http, "cancel", lambda: (200, jobs.view(jobs.cancel(id))))
        case _:
            return None


async def _create(
    core: GatewayCore, http: web.BaseRequest, request: SampleRequest, fields: dict[str, Any], fault: Fault | None
) -> web.StreamResponse:
    """Make the Job, or find the one of the same key. Raises Refusal (409) as ``Jobs.submit`` does."""
    if fault is not None and not fault.after_work:
        return await fault.inject(FaultContext(http, core.retry_after))
    if request.stream:
        raise Refusal(400, "unsupported_value", "A Job cannot be streamed.", param="stream")
    key, body = http.headers.get("Idempotency-Key"), json_bytes.encode(fields, sort=True)
    view = core.jobs.view(core.jobs.submit(request, key, body, partial(run_job, core)))
    if fault is not None:
        return await fault.inject(FaultContext(http, core.retry_after, lambda: view))
    return json_response(view, 202)


async def _respond(
    core: GatewayCore, http: web.BaseRequest, kind: str, find: Callable[[], Result]
) -> web.StreamResponse:
    """Check the key, the window and the faults, then answer with ``find()``.

    A fault without ``after_work`` is injected before it is called. Raises Refusal: 401, 429 if polls count, and those
    of ``find``.
    """
    core.check_key(http)
    core.request_log.kinds[kind] += 1
    if core.options.polls_count and (refusal := core.take_start(time.monotonic())) is not None:
        raise refusal
    fault = core.faults.choose(kind)
    if fault is not None:
        core.request_log.faulted(None, fault.name)
        if not fault.after_work:
            return await fault.inject(FaultContext(http, core.retry_after))
    status, body = find()
    if fault is not None:
        return await fault.inject(FaultContext(http, core.retry_after, lambda: body))
    return json_response(body, status)
