"""The Jobs' routes: to submit one, to look at it, to fetch its result, to cancel it. Their state is in ``jobs.py``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from aiohttp import web

from brimful.runtime import json_bytes
from brimful_worker.gateway.ask import Ask
from brimful_worker.gateway.control import Handler
from brimful_worker.gateway.jobs.jobs import Result
from brimful_worker.gateway.refusal import Refusal
from brimful_worker.gateway.wire import Fault, json_response

if TYPE_CHECKING:
    from brimful_worker.gateway.app import Gateway


class JobRoutes:
    """A submission is work that arrives; the other routes take no slot, and a start only where polls count."""

    PREFIX = "/completion-jobs/"
    """Of the routes of one Job."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    @property
    def routes(self) -> dict[tuple[str, str], Handler]:
        return {("POST", "/completion-jobs"): self._submit}

    async def handle(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        """``path``: what follows PREFIX. Raises Refusal (404) where no route is, and what the route refuses."""
        match (request.method, path.split("/")):
            case ("GET", [id]):
                return await self._poll(request, id)
            case ("GET", [id, "result"]):
                return await self._result(request, id)
            case ("POST", [id, "cancel"]) | ("DELETE", [id]):
                return await self._cancel(request, id)
            case _:
                raise Refusal(404, "not_found", f"Unknown request URL: {request.method} {request.path}.")

    async def _submit(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self._gateway.arrive(request, "submit", self._accept)

    async def _poll(self, request: web.BaseRequest, id: str) -> web.StreamResponse:
        jobs = self._gateway.jobs
        return await self._tell(request, "poll", lambda: (200, jobs.view(jobs.get(id))))

    async def _result(self, request: web.BaseRequest, id: str) -> web.StreamResponse:
        return await self._tell(request, "result", lambda: self._gateway.jobs.result(id))

    async def _cancel(self, request: web.BaseRequest, id: str) -> web.StreamResponse:
        jobs = self._gateway.jobs
        return await self._tell(request, "cancel", lambda: (200, jobs.view(jobs.cancel(id))))

    async def _accept(
        self, request: web.BaseRequest, ask: Ask, fields: dict[str, Any], fault: Fault | None
    ) -> web.StreamResponse:
        """Makes the Job, or finds the one that this key made. Raises Refusal (409) as ``Jobs.submit`` does."""
        gateway = self._gateway
        if fault is not None and not fault.done:
            return await fault.strike(gateway.wire(request))
        job = gateway.jobs.submit(ask, request.headers.get("Idempotency-Key"), json_bytes.encode(fields, sort=True))
        view = gateway.jobs.view(job)
        if fault is not None:
            return await fault.strike(gateway.wire(request, lambda: view))
        return json_response(view, 202)

    async def _tell(self, request: web.BaseRequest, kind: str, find: Callable[[], Result]) -> web.StreamResponse:
        """Key, window, fault; then what ``find`` says. A fault without ``done`` strikes before it is asked.

        Raises Refusal: 401; 429 where polls count; and what ``find`` refuses.
        """
        gateway = self._gateway
        gateway.check_key(request)
        gateway.ledger.kinds[kind] += 1
        if gateway.options.polls_count:
            wait_s = gateway.window.admit(time.monotonic(), gateway.options.starts)
            if wait_s is not None:
                raise gateway.limited(wait_s)
        fault = gateway.faults.choose(kind)
        if fault is not None and not fault.done:
            gateway.ledger.faulted(None, fault.name)
            return await fault.strike(gateway.wire(request))
        status, answer = find()
        if fault is not None:
            gateway.ledger.faulted(None, fault.name)
            return await fault.strike(gateway.wire(request, lambda: answer))
        return json_response(answer, status)
