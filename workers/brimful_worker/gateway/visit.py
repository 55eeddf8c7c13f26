"""One request's stay at the gateway: a slot, a hold, its time and its answer."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Self

from brimful_worker.gateway.answer import complete
from brimful_worker.gateway.ask import Ask
from brimful_worker.gateway.latency import latency_s
from brimful_worker.gateway.limits import QueueFull
from brimful_worker.gateway.refusal import Refusal

if TYPE_CHECKING:
    from brimful_worker.gateway.app import Gateway


class Visit:
    """One request's stay: entering takes a slot, then a hold; leaving gives both back, once."""

    def __init__(self, gateway: Gateway, ask: Ask, *, background: bool = False) -> None:
        self._gateway = gateway
        self._ask = ask
        self._background = background
        self._answer: dict[str, Any] | None = None
        self._inside = False
        self._used = 0
        self._until = 0.0
        self.delivered = False

    async def __aenter__(self) -> Self:
        """Raises Refusal: 429 ``queue_full``, or the end of the budget."""
        gateway, ask = self._gateway, self._ask
        try:
            await gateway.slots.take(background=self._background)
        except QueueFull:
            message = f"All slots are taken and {gateway.slots.waiters} requests wait for one."
            raise Refusal(429, "queue_full", message, retry_s=1.0) from None
        if not gateway.budget.hold(ask.hold):
            gateway.slots.give()
            message = f"The request holds {ask.hold} tokens; {gateway.budget.left} are left of your Budget."
            raise Refusal(gateway.options.budget_status, "insufficient_quota", message)
        self._inside = True
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        gateway = self._gateway
        remaining = self._until - time.monotonic()
        if kind is asyncio.CancelledError and gateway.options.disconnect == "finish" and remaining > 0:
            asyncio.get_running_loop().call_later(remaining, self._finish)
        else:
            self.leave()

    async def work(self) -> None:
        """Takes the time that so many tokens take."""
        gateway, ask = self._gateway, self._ask
        draw = gateway.jitter.random() if gateway.options.jitter else 0.5
        seconds = latency_s(gateway.options, max_tokens=ask.max_tokens, choices=ask.choices, random=draw)
        self._until = time.monotonic() + seconds
        if seconds > 0:
            await asyncio.sleep(seconds)

    def answer(self) -> dict[str, Any]:
        """The true answer; its tokens are used from now on."""
        if self._answer is None:
            self._answer = complete(self._ask, self._gateway.options)
            self._used = self._answer["usage"]["total_tokens"]
        return self._answer

    def deliver(self) -> None:
        """The answer arrives whole."""
        if not self.delivered:
            self.delivered = True
            self._gateway.ledger.sampled(self._ask, self.answer()["usage"]["completion_tokens"])

    def _finish(self) -> None:
        self.answer()  # for nobody, but its tokens are used
        self.leave()

    def leave(self) -> None:
        if self._inside:
            self._inside = False
            self._gateway.budget.settle(self._ask.hold, self._used)
            self._gateway.slots.give()
