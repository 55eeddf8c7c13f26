"""One request being served: it takes a slot and a token hold, takes its time, and is answered with a Completion."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from typing import Any, Self

from aiohttp import web

from brimful_worker.gateway.core import GatewayCore
from brimful_worker.gateway.faults.fault import Fault, FaultContext
from brimful_worker.gateway.jobs.jobs import Result
from brimful_worker.gateway.options import GatewayOptions
from brimful_worker.gateway.responses import Refusal, json_response
from brimful_worker.gateway.sample_request import SampleRequest, read_json
from brimful_worker.gateway.text import sample_text


class Generation:
    """Entering takes a slot, then a hold; leaving returns both, once."""

    def __init__(self, core: GatewayCore, request: SampleRequest, *, background: bool = False) -> None:
        """``background`` is true for a Job."""
        self._core = core
        self._request = request
        self._background = background
        self._answer: dict[str, Any] | None = None
        self._entered = False
        self._until = 0.0
        self.delivered = False

    async def __aenter__(self) -> Self:
        """Raises Refusal: 429 ``queue_full``, or the end of the budget."""
        core, request = self._core, self._request
        await core.slots.take(background=self._background)
        if not core.budget.hold(request.hold):
            core.slots.give()
            message = f"The request holds {request.hold} tokens; {core.budget.left} are left of your Budget."
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
        draw = core.jitter.random() if core.options.jitter else 0.5
        seconds = core.options.seconds(max_tokens=request.max_tokens, choices=request.choices, random=draw)
        self._until = time.monotonic() + seconds
        if seconds > 0:
            await asyncio.sleep(seconds)
        if fault is not None:
            return await fault.inject(FaultContext(http, core.retry_after, self.answer, self.leave, self.deliver))
        self.deliver()
        return json_response(self.answer())

    def answer(self) -> dict[str, Any]:
        """The true answer. Its tokens count as used from now on."""
        if self._answer is None:
            self._answer = complete(self._request, self._core.options)
        return self._answer

    def deliver(self) -> None:
        """Log the choices as sampled: the answer will arrive complete."""
        if not self.delivered:
            self.delivered = True
            self._core.request_log.sampled(self._request, self.answer()["usage"]["completion_tokens"])

    def leave(self) -> None:
        if self._entered:
            self._entered = False
            used = self._answer["usage"]["total_tokens"] if self._answer else 0
            self._core.budget.settle(self._request.hold, used)
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


def complete(request: SampleRequest, options: GatewayOptions) -> dict[str, Any]:
    """All prompts x n choices, choice i of prompt p at index p*n + i, and the usage. ("Sample many rollouts")"""
    choices: list[dict[str, Any]] = []
    generated = 0
    for digest in request.digests:
        for choice in range(request.n):
            text, tokens, finish = sample_text(
                digest,
                choice,
                max_tokens=request.max_tokens,
                seed=request.seed,
                model=request.model,
                greedy=request.greedy,
                odd=options.text == "unicode",
            )
            for stop in request.stop:
                if (end := text.find(stop)) >= 0:
                    text, finish = text[:end], "stop"
                    tokens = len(text.split())
            generated += tokens
            message = {"role": "assistant", "content": text}
            content: dict[str, Any] = {"message": message} if request.chat else {"text": text}
            choices.append({"index": len(choices), **content, "logprobs": None, "finish_reason": finish})
    return {
        "id": ("chatcmpl-" if request.chat else "cmpl-") + uuid.uuid4().hex,
        "object": "chat.completion" if request.chat else "text_completion",
        "created": int(time.time()),
        "model": request.model,
        "choices": choices,
        "usage": {
            "prompt_tokens": request.prompt_tokens,
            "completion_tokens": generated,
            "total_tokens": request.prompt_tokens + generated,
        },
    }
