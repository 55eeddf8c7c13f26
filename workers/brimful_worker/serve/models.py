"""``GET /v1/models``: the provider's list where it has one, else the profile's model."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from urllib.parse import unquote

from aiohttp import web

from brimful.profile import Profile
from brimful.runtime import json_bytes
from brimful_worker.provider import Provider
from brimful_worker.provider.answers.answer import Answer
from brimful_worker.provider.answers.classify import parse_json
from brimful_worker.serve.front import FRONT
from brimful_worker.serve.refusals import Refusal

_KEPT_S = 60.0
_PATIENCE_S = 10.0


class Models:
    """The list, asked for once a minute at most."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._found: list[Any] = []
        self._until = 0.0

    async def list(self, provider: Provider, profile: Profile) -> list[Any]:
        """OpenAI's model objects."""
        async with self._lock:
            if time.monotonic() >= self._until:
                self._found = await _ask(provider) or _own(profile)
                self._until = time.monotonic() + _KEPT_S
            return self._found


async def _ask(provider: Provider) -> list[Any]:
    try:
        async with asyncio.timeout(_PATIENCE_S):
            answer = await provider.models()
    except TimeoutError:
        return []
    document = parse_json(answer) if isinstance(answer, Answer) and answer.status == 200 else None
    data = document.get("data") if isinstance(document, dict) else None
    return [each for each in data if isinstance(each, dict) and each.get("id")] if isinstance(data, list) else []


def _own(profile: Profile) -> list[Any]:
    names = [profile.model] if profile.model else []
    return [{"id": name, "object": "model", "created": 0, "owned_by": profile.name} for name in names]


MODELS = web.AppKey("models", Models)


async def list_models(http: web.Request) -> web.Response:
    return _json({"object": "list", "data": await _models(http)})


async def get_model(http: web.Request) -> web.Response:
    name = unquote(http.match_info["model"])  # it may hold slashes
    for model in await _models(http):
        if model["id"] == name:
            return _json(model)
    raise Refusal(404, f"The model '{name[:200]}' does not exist.", "model_not_found", param="model")


async def _models(http: web.Request) -> list[Any]:
    front = http.app[FRONT]
    async with front.gate.turn():
        return await http.app[MODELS].list(front.process.key.provider, front.settings.profile)


def _json(document: Any) -> web.Response:
    return web.Response(body=json_bytes.encode(document), content_type="application/json")
