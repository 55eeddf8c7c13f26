"""The mock gateway's own routes, which need no key: the request log, and changes of options and faults."""

from __future__ import annotations

from aiohttp import web

from brimful_worker.gateway.core import GatewayCore, Handler
from brimful_worker.gateway.responses import Refusal, json_response
from brimful_worker.gateway.sample_request import read_json


def control_routes(core: GatewayCore) -> dict[tuple[str, str], Handler]:
    """The handlers, by method and path."""

    async def health(http: web.BaseRequest) -> web.StreamResponse:
        return json_response({"status": "ok"})

    async def ledger(http: web.BaseRequest) -> web.StreamResponse:
        return json_response(core.snapshot(arrivals="arrivals" in http.query))

    async def reset_ledger(http: web.BaseRequest) -> web.StreamResponse:
        core.reset()
        return json_response(core.snapshot())

    async def prompts(http: web.BaseRequest) -> web.StreamResponse:
        prompts = read_json(await core.body(http)).get("prompts")
        if not isinstance(prompts, list):
            raise Refusal(400, "invalid_type", "prompts must be a list", param="prompts")
        log = core.request_log
        return json_response(
            {"prompts": [{"attempts": log.attempts(p), "sampled": log.times_sampled(p)} for p in prompts]}
        )

    async def get_faults(http: web.BaseRequest) -> web.StreamResponse:
        rules = [{"fault": rule.fault.name, "happened": rule.happened} for rule in core.faults.rules]
        return json_response({"rules": rules})

    async def set_faults(http: web.BaseRequest) -> web.StreamResponse:
        faults = read_json(await core.body(http)).get("faults")
        if not isinstance(faults, str):
            raise Refusal(400, "invalid_type", 'faults must be a string, as in "500:0.05,reset:x2"', param="faults")
        core.set(faults=faults)
        return await get_faults(http)

    async def set_options(http: web.BaseRequest) -> web.StreamResponse:
        core.set(**read_json(await core.body(http)))
        return json_response({"status": "ok"})

    return {
        ("GET", "/healthz"): health,
        ("GET", "/ledger"): ledger,
        ("POST", "/ledger/reset"): reset_ledger,
        ("POST", "/ledger/prompts"): prompts,
        ("GET", "/faults"): get_faults,
        ("POST", "/faults"): set_faults,
        ("POST", "/options"): set_options,
    }
