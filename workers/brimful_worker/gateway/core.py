"""What the mock gateway's routes share: options, limits, faults, Jobs, the request log, and the checks of requests.

It imports neither the server nor the routes; they import it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from brimful_worker.gateway.faults.fault import Fault, FaultContext
from brimful_worker.gateway.faults.rules import Faults
from brimful_worker.gateway.jobs.jobs import Jobs
from brimful_worker.gateway.limits import Budget, Slots, Window
from brimful_worker.gateway.options import GatewayOptions
from brimful_worker.gateway.request_log import Arrival, RequestLog
from brimful_worker.gateway.responses import REQUEST_ID, Refusal, json_response, retry_headers, stated_headers
from brimful_worker.gateway.sample_request import SampleRequest, parse_request, read_json
from brimful_worker.gateway.throughput import SharedThroughput

Serve = Callable[[web.BaseRequest, SampleRequest, dict[str, Any], Fault | None], Awaitable[web.StreamResponse]]
"""Serves an accepted request, given its body's fields and its fault. May raise Refusal."""

_WORKLOAD_HEADER = "X-Acs-Workload"


class GatewayCore:
    """The state of one mock gateway."""

    def __init__(self, options: GatewayOptions | None = None) -> None:
        """Raises SettingError for invalid faults."""
        self.options = options = options or GatewayOptions()
        self.slots = Slots(options.slots, options.waiters, time.monotonic)
        self.window = Window(options.window_s)
        self.budget = Budget(options.budget)
        self.throughput = SharedThroughput(options.shared_tokens_per_s or 1.0)
        self.faults = Faults(options.faults, options.seed)
        self.jobs = Jobs(options)
        self.request_log = RequestLog(
            window_s=options.window_s, keep=options.arrivals_kept, track_prompts=options.track_prompts
        )
        self.jitter = random.Random(options.seed + 1)

    def set(self, **changes: Any) -> None:
        """Change options. Raises SettingError, and changes nothing, if one is invalid."""
        faults = Faults(changes["faults"], self.options.seed) if "faults" in changes else self.faults
        self.options.change(changes)
        self.faults = faults
        self.slots.waiters = self.options.waiters
        self.slots.resize(self.options.slots)
        self.window.window_s = self.request_log.window.window_s = self.options.window_s
        self.budget.total = self.options.budget
        self.throughput.tokens_per_s = self.options.shared_tokens_per_s or 1.0

    def reset(self) -> None:
        """Clear the request log and the peaks. Limits, Jobs and used tokens stay."""
        self.request_log.reset()
        self.slots.reset()
        self.window.reset_peak(time.monotonic())

    def snapshot(self, *, arrivals: bool = False) -> dict[str, Any]:
        """The JSON of ``GET /ledger``; with ``arrivals``, the latest ones are listed one by one."""
        budget = self.budget
        return {
            "active": self.slots.active,
            "waiting": self.slots.waiting,
            "peak_active": self.slots.peak_active,
            "peak_waiting": self.slots.peak_waiting,
            "peak_present": self.slots.peak_present,
            "slot_seconds": round(self.slots.slot_seconds, 3),
            "slots": self.options.slots,
            "starts": self.options.starts,
            "most_starts_in_window": self.window.peak,
            **self.request_log.snapshot(arrivals=arrivals),
            "budget": {
                "total": budget.total,
                "used": budget.used,
                "held": budget.held,
                "peak_held": budget.peak_held,
                "refused": budget.refused,
            },
            "jobs": self.jobs.snapshot(),
            "now_s": time.monotonic(),
        }

    async def receive(self, http: web.BaseRequest, kind: str, serve: Serve) -> web.StreamResponse:
        """Log an arrival from its start to its end, and answer it; a refusal is answered too."""
        log = self.request_log
        arrival = log.arrive(kind, http.headers.get(_WORKLOAD_HEADER, ""), http[REQUEST_ID])
        try:
            response = await self._accept(http, kind, arrival, serve)
        except Refusal as refusal:
            log.ended(arrival, refusal.status, refusal.code)
            response = self.refuse(refusal)
            response.headers.update(self.rate_headers())
            return response
        except BaseException:
            log.disconnected_early(arrival)
            raise
        log.ended(arrival, response.status)
        if not response.prepared:
            response.headers.update(self.rate_headers())
        return response

    async def _accept(self, http: web.BaseRequest, kind: str, arrival: Arrival, serve: Serve) -> web.StreamResponse:
        """Check key, window and body, inject a fault on arrival, then serve the request."""
        self.check_key(http)
        rate_limited = self.take_start(arrival.at)
        try:
            fields = read_json(await self.body(http))
            request = parse_request(fields, self.options, chat=kind == "chat")
        except Refusal as refusal:
            raise rate_limited or refusal from None
        self.request_log.asked(arrival, request)
        if rate_limited is not None:
            raise rate_limited
        fault = self.faults.choose(kind, request.prompts)
        if fault is not None:
            self.request_log.faulted(arrival, fault.name)
            if fault.on_arrival:
                return await fault.inject(FaultContext(http, self.retry_after))
        return await serve(http, request, fields, fault)

    def check_key(self, http: web.BaseRequest) -> None:
        """Raises Refusal (401)."""
        scheme, _, token = http.headers.get("Authorization", "").partition(" ")
        others = [http.headers.get(name, "") for name in self.options.key_headers]
        key = next(filter(None, map(str.strip, [token if scheme.lower() == "bearer" else "", *others])), None)
        if key is None:
            raise Refusal(401, "missing_api_key", "You didn't provide an API key (Authorization: Bearer KEY).")
        if self.options.keys and key not in self.options.keys:
            raise Refusal(401, "invalid_api_key", "Incorrect API key provided.")

    def take_start(self, at: float) -> Refusal | None:
        """Count a start in the window; the 429 to raise if it is full."""
        options = self.options
        wait_s = self.window.admit(at, options.starts)
        if wait_s is None:
            return None
        message = f"More than {options.starts} request starts in {options.window_s:g} s."
        return Refusal(429, "rate_limited", message, retry_s=wait_s)

    async def body(self, http: web.BaseRequest) -> bytes:
        """Raises Refusal (400, 413)."""
        try:
            return await http.read()
        except web.HTTPRequestEntityTooLarge:
            limit = self.options.max_body_bytes
            raise Refusal(413, "body_too_large", f"The body is larger than {limit} bytes.") from None
        except web.RequestPayloadError as error:
            raise Refusal(400, "invalid_body", f"We could not read the body of your request: {error}") from None

    def refuse(self, refusal: Refusal) -> web.Response:
        headers = {} if refusal.retry_s is None else self.retry_after(refusal.retry_s)
        return json_response(refusal.body, refusal.status, headers)

    def rate_headers(self) -> dict[str, str]:
        """The window's headers in the form of the options."""
        options = self.options
        if options.rate_headers == "none" or options.starts is None:
            return {}
        left = max(0, options.starts - self.window.count(time.monotonic()))
        minute = 60 / options.window_s  # these providers state what they allow in a minute
        return stated_headers(
            options.rate_headers, round(options.starts * minute), round(left * minute), options.window_s
        )

    def retry_after(self, seconds: float) -> dict[str, str]:
        """The ``Retry-After`` header in the form of the options."""
        return retry_headers(self.options.retry_after, seconds)
