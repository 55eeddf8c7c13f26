"""One request being served: it takes a slot and a token hold, takes its time, and is answered with a Completion."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Self

from aiohttp import web

from brimful.words.counted import counted
from brimful_worker.gateway.core import GatewayCore
from brimful_worker.gateway.faults.fault import Fault, FaultContext
from brimful_worker.gateway.jobs.jobs import Result
from brimful_worker.gateway.model.completion import Completion, complete
from brimful_worker.gateway.responses import Refusal, json_response
from brimful_worker.gateway.sample_request import SampleRequest, read_json
from brimful_worker.gateway.streaming import EventStream, stream_rounds


class Generation:
    """Entering takes a slot, then a hold; leaving returns both, once."""

    def __init__(self, core: GatewayCore, request: SampleRequest, *, background: bool = False) -> None:
        """``background`` is true for a Job."""
        self._core = core
        self._request = request
        self._background = background
        self._completion: Completion | None = None
        self._used = 0
        self._entered = False
        self._until = 0.0
        self._seconds = 0.0
        self.delivered = False

    async def __aenter__(self) -> Self:
        """Raises Refusal: 429 ``queue_full``, or the end of the budget."""
        core, request = self._core, self._request
        await core.slots.take(background=self._background)
        if not core.budget.hold(request.hold):
            core.slots.give()
            message = f"The request holds {counted(request.hold, 'token')}; {core.budget.left} are left of your Budget."
            raise Refusal(core.options.budget_status, "insufficient_quota", message)
        self._entered = True
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        remaining = self._until - time.monotonic()
        if kind is asyncio.CancelledError and self._core.options.disconnect == "finish" and remaining > 0:
            asyncio.get_running_loop().call_later(remaining, self._finish)
        else:
            self.leave()

    async def respond(self, fault: Fault | None, http: web.BaseRequest | None) -> web.StreamResponse:
        """Take the request's time, then answer it, or let the fault do so. ``http`` is None for a Job."""
        core, request = self._core, self._request
        options = core.options
        self._seconds = options.seconds(
            max_tokens=request.max_tokens,
            choices=request.choices,
            random=core.jitter.random() if options.jitter else 0.5,
            tail=core.jitter.random() if options.tail else 0.0,
        )
        self._until = time.monotonic() + self._seconds
        context = FaultContext(http, core.retry_after, self.answer, self.leave, self.deliver)
        if request.stream and http is not None and (fault is None or fault.after_work):
            return await self._stream(EventStream(http), fault, context)
        await self._take_time(1.0)
        if fault is not None:
            return await fault.inject(context)
        self.deliver()
        return json_response(self.answer())

    async def _stream(self, events: EventStream, fault: Fault | None, context: FaultContext) -> web.StreamResponse:
        """A fault comes in the middle of the stream: ``errorevent`` as an event, any other resets the connection."""
        await events.open()
        rounds = stream_rounds(self._request, self._complete())
        for number, chunks in enumerate(rounds):
            await self._take_time(1 / len(rounds))
            if fault is not None and number >= len(rounds) // 2:
                if fault.name != "errorevent":
                    await context.reset()
                self.leave()
                await events.fail("server_error", "The server had an error while processing your request.")
                return events.response
            await events.send(*chunks)
        self.answer()
        self.deliver()
        self.leave()
        await events.send("[DONE]")
        await events.response.write_eof()
        return events.response

    async def _take_time(self, share: float) -> None:
        """Wait for this share of the request's time."""
        core = self._core
        if core.options.shared_tokens_per_s is not None:
            await asyncio.sleep(core.options.latency_s * share)
            await core.throughput.generate(self._complete().completion_tokens * share)
        elif self._seconds > 0:
            await asyncio.sleep(self._seconds * share)

    def _complete(self) -> Completion:
        if self._completion is None:
            self._completion = complete(self._request, self._core.options)
        return self._completion

    def answer(self) -> dict[str, Any]:
        """The true answer. Its tokens count as used from now on."""
        completion = self._complete()
        self._used = completion.prompt_tokens + completion.completion_tokens
        return completion.body

    def deliver(self) -> None:
        """Log the choices as sampled: the answer will arrive complete."""
        if not self.delivered:
            self.delivered = True
            self._core.request_log.sampled(self._request, self._complete().completion_tokens)

    def leave(self) -> None:
        if self._entered:
            self._entered = False
            self._core.budget.settle(self._request.hold, self._used)
            self._core.slots.give()

    def _finish(self) -> None:
        self.answer()  # nobody reads it, but its tokens are used
        self.leave()


async def run_job(core: GatewayCore, request: SampleRequest, on_running: Callable[[], None]) -> Result:
    """A Job's work, which has no connection of its own. Calls back when it has its slot. Raises Refusal."""
    fault = core.faults.choose("job", request.prompts)
    async with Generation(core, request, background=True) as generation:
        on_running()
        if fault is not None:
            core.request_log.faulted(None, fault.name)
        response = await generation.respond(fault, None)
    assert isinstance(response, web.Response)
    assert isinstance(response.body, bytes)
    return response.status, read_json(response.body)
