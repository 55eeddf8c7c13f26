"""The gateway: a server on one port, one handler a route, over limits, holds, faults, Jobs and the ledger."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, Self

from aiohttp import web

from brimful_worker.gateway.ask import Ask, read_ask, read_json
from brimful_worker.gateway.control import Control, Handler
from brimful_worker.gateway.faults.faults import FaultError, Faults
from brimful_worker.gateway.jobs.holds import Budget
from brimful_worker.gateway.jobs.jobs import Jobs, Result
from brimful_worker.gateway.jobs.routes import JobRoutes
from brimful_worker.gateway.limits import Slots, Window
from brimful_worker.gateway.options import GatewayOptions, OptionError
from brimful_worker.gateway.refusal import Refusal, retry_headers
from brimful_worker.gateway.request_log import Arrival, RequestLog
from brimful_worker.gateway.server import listen
from brimful_worker.gateway.visit import Visit
from brimful_worker.gateway.wire import Fault, Wire, json_response

Serve = Callable[[web.BaseRequest, Ask, dict[str, Any], Fault | None], Awaitable[web.StreamResponse]]
"""Does what an admitted request asks for, given its body's fields and the fault it is to meet. May raise Refusal."""

_WORKLOAD_HEADER = "X-Acs-Workload"


def _nothing() -> None:
    pass


class Gateway:
    """``await start()``, use ``url``, ask ``ledger``, ``await stop()``; or ``async with Gateway(options) as it``."""

    def __init__(self, options: GatewayOptions | None = None) -> None:
        """Raises OptionError or FaultError for options that cannot be."""
        self.options = options or GatewayOptions()
        self.options.check()
        opt, clock = self.options, time.monotonic
        self.slots = Slots(opt.slots, opt.waiters, clock)
        self.window = Window(opt.window_s)
        self.budget = Budget(opt.budget)
        self.faults = Faults(opt.faults, opt.seed)
        self.jobs = Jobs(opt, self._run_job)
        self.ledger = RequestLog(clock, window_s=opt.window_s, keep=opt.arrivals_kept, track_prompts=opt.track_prompts)
        self.jitter = random.Random(opt.seed + 1)
        self._stop: Callable[[], Awaitable[None]] | None = None
        self._host, self._port = "127.0.0.1", 0
        self._job_routes = JobRoutes(self)
        self._routes: dict[tuple[str, str], Handler] = {
            ("POST", "/completions"): self._completions,
            ("POST", "/chat/completions"): self._chat_completions,
            ("GET", "/models"): self._models,
            **self._job_routes.routes,
            **Control(self).routes,
        }

    # -- life -----------------------------------------------------------------------------------------------------

    @property
    def root(self) -> str:
        """``http://host:port``, where ``/ledger``, ``/faults``, ``/options`` and ``/healthz`` are."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    @property
    def url(self) -> str:
        """The API's base URL, ending in ``/v1``."""
        return f"{self.root}/v1"

    @property
    def port(self) -> int:
        return self._port

    async def start(self, port: int = 0, host: str = "127.0.0.1") -> Self:
        """Listens; ``port`` 0 takes a free one. Raises OSError where it cannot."""
        self._host = host
        self._port, self._stop = await listen(self, host, port)
        return self

    async def stop(self) -> None:
        """Closes every connection, ends every Job."""
        await self.jobs.stop()
        if self._stop is not None:
            await self._stop()
            self._stop = None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    def set(self, **changes: Any) -> None:
        """Changes options while it runs. Raises OptionError or FaultError, changing nothing."""
        faults = Faults(changes["faults"], self.options.seed) if "faults" in changes else None
        self.options.change(changes)
        if faults is not None:
            self.faults = faults
        self.slots.waiters = self.options.waiters
        self.slots.resize(self.options.slots)
        self.window.window_s = self.ledger.window.window_s = self.options.window_s
        self.budget.total = self.options.budget

    def reset(self) -> None:
        """The ledger begins anew; limits, Jobs and tokens used stay as they are."""
        self.ledger.reset()
        self.slots.reset()
        self.window.reset_peak(time.monotonic())

    def snapshot(self, *, arrivals: bool = False) -> dict[str, Any]:
        """What ``GET /ledger`` answers."""
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
            **self.ledger.snapshot(arrivals=arrivals),
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

    # -- routes ---------------------------------------------------------------------------------------------------

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.raw_path.partition("?")[0].removeprefix("/v1") if request.raw_path[:1] == "/" else request.path
        handler = self._routes.get((request.method, path))
        try:
            if handler is not None:
                return await handler(request)
            if path.startswith(JobRoutes.PREFIX):
                return await self._job_routes.handle(request, path.removeprefix(JobRoutes.PREFIX))
            if any(path == known for _, known in self._routes):
                raise Refusal(405, "method_not_allowed", f"{request.method} is not allowed for {path}.")
            raise Refusal(404, "not_found", f"Unknown request URL: {request.method} {path}.")
        except Refusal as refusal:
            return self._refuse(refusal)
        except (OptionError, FaultError) as error:
            return self._refuse(Refusal(400, "invalid_option", str(error)))

    async def _completions(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self.arrive(request, "completions", self._serve)

    async def _chat_completions(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self.arrive(request, "chat", self._serve)

    async def _models(self, request: web.BaseRequest) -> web.StreamResponse:
        self.check_key(request)
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "stand-in"} for name in self.options.models]
        return json_response({"object": "list", "data": data})

    # -- requests that are work -----------------------------------------------------------------------------------

    async def arrive(self, request: web.BaseRequest, kind: str, serve: Serve) -> web.StreamResponse:
        """Writes the request into the ledger, from its arrival to its end, and answers it: also when it is refused."""
        ledger = self.ledger
        arrival = ledger.arrive(kind, request.headers.get(_WORKLOAD_HEADER, ""))
        try:
            response = await self._admit(request, kind, arrival, serve)
        except Refusal as refusal:
            response = self._refuse(refusal)
            ledger.ended(arrival, refusal.status, refusal.code or "")
        except BaseException:
            ledger.went(arrival)
            raise
        else:
            ledger.ended(arrival, response.status)
        return response

    async def _admit(self, request: web.BaseRequest, kind: str, arrival: Arrival, serve: Serve) -> web.StreamResponse:
        """Key, window, body, fault at the door; then the work."""
        self.check_key(request)
        opt = self.options
        wait_s = self.window.admit(arrival.at, opt.starts, count_refused=opt.refused_count)
        limited = None if wait_s is None else self.limited(wait_s)
        try:
            fields = read_json(await self.body(request))
            ask = read_ask(fields, opt, chat=kind == "chat")
        except Refusal:
            if limited is not None:
                raise limited from None
            raise
        self.ledger.asked(arrival, ask)
        if limited is not None:
            raise limited
        fault = self.faults.choose(kind, ask.prompts)
        if fault is not None:
            self.ledger.faulted(arrival, fault.name)
            if fault.door:
                return await fault.strike(self.wire(request))
        return await serve(request, ask, fields, fault)

    async def _serve(
        self, request: web.BaseRequest, ask: Ask, fields: dict[str, Any], fault: Fault | None
    ) -> web.StreamResponse:
        """Takes a slot and a hold, takes its time, answers. Both are free before the answer's last byte is written."""
        async with Visit(self, ask) as visit:
            await visit.work()
            if fault is None:
                visit.deliver()
                return json_response(visit.answer())
            response = await fault.strike(self.wire(request, visit.answer, visit.leave, visit.deliver))
            self.ledger.spoiled += fault.done and not visit.delivered
            return response

    async def _run_job(self, ask: Ask, running: Callable[[], None]) -> Result:
        """The same for a Job, which has no connection of its own."""
        fault = self.faults.choose("job", ask.prompts)
        async with Visit(self, ask, background=True) as visit:
            running()
            await visit.work()
            if fault is None:
                visit.deliver()
                return 200, visit.answer()
            self.ledger.faulted(None, fault.name)
            struck = await fault.strike(self.wire(None, visit.answer, visit.leave, visit.deliver))
            assert isinstance(struck, web.Response)
            assert isinstance(struck.body, bytes)
            return struck.status, read_json(struck.body)

    # -- help -----------------------------------------------------------------------------------------------------

    def check_key(self, request: web.BaseRequest) -> None:
        """Raises Refusal (401)."""
        scheme, _, key = request.headers.get("Authorization", "").partition(" ")
        key = key.strip()
        if scheme.lower() != "bearer" or not key:
            raise Refusal(401, "missing_api_key", "You didn't provide an API key (Authorization: Bearer KEY).")
        if self.options.keys and key not in self.options.keys:
            raise Refusal(401, "invalid_api_key", "Incorrect API key provided.")

    async def body(self, request: web.BaseRequest) -> bytes:
        """The body. Raises Refusal (400, 413)."""
        try:
            return await request.read()
        except web.HTTPRequestEntityTooLarge:
            most = self.options.max_body_bytes
            raise Refusal(413, "body_too_large", f"The body is larger than {most} bytes.") from None
        except web.RequestPayloadError as error:
            raise Refusal(400, "invalid_body", f"We could not read the body of your request: {error}") from None

    def limited(self, wait_s: float) -> Refusal:
        """The 429 of the window, to be raised; ``wait_s``: seconds until it has room for a start."""
        message = f"More than {self.options.starts} request starts in {self.options.window_s:g} s."
        return Refusal(429, "rate_limited", message, retry_s=wait_s)

    def _refuse(self, refusal: Refusal) -> web.Response:
        headers = {} if refusal.retry_s is None else self._retry_after(refusal.retry_s)
        return json_response(refusal.body(), refusal.status, headers)

    def _retry_after(self, seconds: float) -> dict[str, str]:
        told = self.options.retry_after_s
        return retry_headers(self.options.retry_after, seconds if told is None else told)

    def wire(
        self,
        request: web.BaseRequest | None,
        answer: Callable[[], dict[str, Any]] = dict,
        release: Callable[[], None] = _nothing,
        delivered: Callable[[], None] = _nothing,
    ) -> Wire:
        """What a fault gets to strike with; by default of a request that did no work: nothing to tell or to free."""
        return Wire(request, answer, release, self._retry_after, delivered)
