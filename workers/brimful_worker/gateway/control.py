"""The mock gateway's own routes, which need no key: the request log, and changes of options and faults."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from brimful_worker.gateway.core import GatewayCore
from brimful_worker.gateway.responses import Refusal, json_response
from brimful_worker.gateway.sample_request import read_json


async def control(core: GatewayCore, http: web.BaseRequest, path: str) -> web.StreamResponse | None:
    """The response; None for any other route. Raises Refusal (400), and SettingError for invalid options or faults."""
    body: Any = {"status": "ok"}
    match http.method, path:
        case "GET", "/healthz":
            pass
        case "GET", "/ledger":
            body = core.snapshot(arrivals="arrivals" in http.query)
        case "POST", "/ledger/reset":
            core.reset()
            body = core.snapshot()
        case "POST", "/ledger/prompts":
            log, prompts = core.request_log, await _field(core, http, "prompts", list, "a list")
            body = {"prompts": [{"attempts": log.attempts(p), "sampled": log.times_sampled(p)} for p in prompts]}
        case "POST", "/options":
            core.set(**read_json(await core.body(http)))
        case "GET" | "POST", "/faults":
            if http.method == "POST":
                core.set(faults=await _field(core, http, "faults", str, 'a string, as in "500:0.05,reset:x2"'))
            body = {"rules": [{"fault": rule.fault.name, "happened": rule.happened} for rule in core.faults.rules]}
        case _:
            return None
    return json_response(body)


async def _field(core: GatewayCore, http: web.BaseRequest, name: str, kind: type, wanted: str) -> Any:
    value = read_json(await core.body(http)).get(name)
    if not isinstance(value, kind):
        raise Refusal(400, "invalid_type", f"{name} must be {wanted}", param=name)
    return value
