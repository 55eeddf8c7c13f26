"""The gateway's own routes, beside the provider's: what it saw, and how it behaves from now on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from aiohttp import web

from brimful_worker.gateway.ask import read_json
from brimful_worker.gateway.refusal import Refusal
from brimful_worker.gateway.wire import json_response

if TYPE_CHECKING:
    from brimful_worker.gateway.app import Gateway

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Control:
    """No key is asked for here."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    @property
    def routes(self) -> dict[tuple[str, str], Handler]:
        return {
            ("GET", "/healthz"): self._health,
            ("GET", "/ledger"): self._ledger,
            ("POST", "/ledger/reset"): self._reset,
            ("POST", "/ledger/prompts"): self._prompts,
            ("GET", "/faults"): self._get_faults,
            ("POST", "/faults"): self._set_faults,
            ("POST", "/options"): self._set_options,
        }

    async def _health(self, request: web.BaseRequest) -> web.StreamResponse:
        return json_response({"status": "ok"})

    async def _ledger(self, request: web.BaseRequest) -> web.StreamResponse:
        return json_response(self._gateway.snapshot(arrivals="arrivals" in request.query))

    async def _reset(self, request: web.BaseRequest) -> web.StreamResponse:
        self._gateway.reset()
        return json_response(self._gateway.snapshot())

    async def _prompts(self, request: web.BaseRequest) -> web.StreamResponse:
        prompts = read_json(await self._gateway.body(request)).get("prompts")
        if not isinstance(prompts, list):
            raise Refusal(400, "invalid_type", "prompts must be a list", param="prompts")
        return json_response({"prompts": self._gateway.ledger.prompts(prompts)})

    async def _get_faults(self, request: web.BaseRequest) -> web.StreamResponse:
        rules = [{"fault": rule.fault.name, "happened": rule.happened} for rule in self._gateway.faults.rules]
        return json_response({"rules": rules})

    async def _set_faults(self, request: web.BaseRequest) -> web.StreamResponse:
        text = read_json(await self._gateway.body(request)).get("faults")
        if not isinstance(text, str):
            raise Refusal(400, "invalid_type", 'faults must be a string, as in "500:0.05,reset:x2"', param="faults")
        self._gateway.set(faults=text)
        return await self._get_faults(request)

    async def _set_options(self, request: web.BaseRequest) -> web.StreamResponse:
        self._gateway.set(**read_json(await self._gateway.body(request)))
        return json_response({"status": "ok"})
