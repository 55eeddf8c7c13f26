"""The mock gateway: one HTTP server, with one handler a route."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Self
from urllib.parse import unquote

from aiohttp import web

from brimful.errors import SettingError
from brimful_worker.gateway.control import control
from brimful_worker.gateway.core import GatewayCore
from brimful_worker.gateway.faults.fault import Fault
from brimful_worker.gateway.generation import Generation
from brimful_worker.gateway.jobs.routes import job_routes
from brimful_worker.gateway.options import GatewayOptions
from brimful_worker.gateway.responses import REQUEST_ID, Refusal, json_response
from brimful_worker.gateway.sample_request import SampleRequest
from brimful_worker.gateway.server import listen


class Gateway(GatewayCore):
    """``async with Gateway(options) as gateway``: it listens on ``gateway.url``, and logs into ``request_log``."""

    def __init__(self, options: GatewayOptions | None = None) -> None:
        """Raises SettingError for invalid faults."""
        super().__init__(options)
        self._stop: Callable[[], Awaitable[None]] | None = None
        self._host, self.port = "127.0.0.1", 0

    @property
    def root(self) -> str:
        """``http://host:port``, the base of ``/ledger``, ``/faults``, ``/options`` and ``/healthz``."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}"

    @property
    def url(self) -> str:
        """The API's base URL, ending in ``/v1``."""
        return f"{self.root}/v1"

    async def start(self, port: int = 0, host: str = "127.0.0.1") -> Self:
        """Listen; ``port`` 0 takes a free one. Raises OSError if it cannot."""
        self._host = host
        self.port, self._stop = await listen(self._handle, self.options, self.request_log, host, port)
        return self

    async def stop(self) -> None:
        """Close every connection and cancel every Job."""
        await self.jobs.stop()
        if self._stop is not None:
            await self._stop()
            self._stop = None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def _handle(self, http: web.BaseRequest) -> web.StreamResponse:
        http[REQUEST_ID] = f"req_{uuid.uuid4().hex}"
        response = await self._answer(http)
        if not response.prepared:
            response.headers["x-request-id"] = http[REQUEST_ID]
        return response

    async def _answer(self, http: web.BaseRequest) -> web.StreamResponse:
        path = http.raw_path.partition("?")[0].removeprefix("/v1") if http.raw_path[:1] == "/" else http.path
        try:
            return await self._route(http, path)
        except Refusal as refusal:
            return self.refuse(refusal)
        except SettingError as error:
            return self.refuse(Refusal(400, "invalid_option", str(error)))

    async def _route(self, http: web.BaseRequest, path: str) -> web.StreamResponse:
        match http.method, path.split("/")[1:]:
            case "POST", ["completions"]:
                return await self.receive(http, "completions", self._generate)
            case "POST", ["chat", "completions"]:
                return await self.receive(http, "chat", self._generate)
            case _, ["completion-jobs", *rest] if (response := await job_routes(self, http, rest)) is not None:
                return response
            case "GET", ["models"]:
                self.check_key(http)
                return json_response({"object": "list", "data": [_model(name) for name in self.options.models]})
            case "GET", ["models", *parts]:  # a model's name may hold slashes
                self.check_key(http)
                name = unquote("/".join(parts))
                if self.options.models and name not in self.options.models:
                    raise Refusal(404, "model_not_found", f"The model '{name}' does not exist.", param="model")
                return json_response(_model(name))
            case _, ["completions"] | ["chat", "completions"] | ["completion-jobs"] | ["models", *_]:
                raise Refusal(405, "method_not_allowed", f"{http.method} is not allowed for {path}.")
        if (response := await control(self, http, path)) is not None:
            return response
        raise Refusal(404, "not_found", f"Unknown request URL: {http.method} {path}.")

    async def _generate(
        self, http: web.BaseRequest, request: SampleRequest, fields: dict[str, Any], fault: Fault | None
    ) -> web.StreamResponse:
        """The slot and the hold are free before the answer's last byte is written."""
        async with Generation(self, request) as generation:
            response = await generation.respond(fault, http)
            self.request_log.spoiled += fault is not None and fault.after_work and not generation.delivered
            return response


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "mock"}
