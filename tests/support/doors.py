"""Front doors for tests: in the test's own process, on a real socket and a real Valkey, or as a process."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest
from openai import AsyncOpenAI

from brimful.config import Settings
from brimful.state.redis_url import sync_redis_client
from brimful_worker.admission import mark_clean
from brimful_worker.serve.front import Front
from brimful_worker.serve.server import listen, opened
from support.commands import Running
from support.waiting import wait_until, wait_until_async

KEY = "sk-canary-91be77d0c4"


@dataclass
class Door:
    """One front door."""

    url: str
    """Ends in ``/v1``."""
    front: Front
    http: aiohttp.ClientSession

    def openai(self, **more: Any) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=self.url, **{"api_key": "any", "max_retries": 0, **more})

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, dict[str, Any], Any]:
        """Status, headers and JSON of an answer. ``headers``: with _ for -."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.http.post(f"{self.url}/{path}", json=body, headers=named) as answer:
            return answer.status, dict(answer.headers), await answer.json()

    async def complete(self, prompt: Any = "The sky is", **fields: Any) -> tuple[int, dict[str, Any], Any]:
        return await self.post("completions", {"model": "llama-8b", "prompt": prompt, "max_tokens": 4, **fields})


@asynccontextmanager
async def door(
    monkeypatch: pytest.MonkeyPatch,
    redis_url: str,
    provider_url: str,
    *,
    clean: bool = True,
    key: str | None = KEY,
    **settings: Any,
) -> AsyncIterator[Door]:
    """In this process. ``settings`` are fields of Settings. It has reached its Redis, which no process has
    used before if it is ``clean``."""
    monkeypatch.setenv("ACS_API_BASE", provider_url)
    if key is not None:
        monkeypatch.setenv("ACS_API_KEY", key)
    quick = {"backoff_base_s": 0.01, "backoff_cap_s": 0.05, "guardian": False, **settings}
    loaded = Settings.load(redis_url=redis_url, **quick)
    if clean:
        with sync_redis_client(redis_url) as client:
            mark_clean(client, loaded.key_tag)  # else nothing is granted for the time of a lease
    listener = listen("127.0.0.1", 0)
    async with opened(loaded, listener) as (front, joining), aiohttp.ClientSession() as http:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        await wait_until_async(lambda: front.gate.reason is None or joining.done(), "the door to open")
        assert not joining.done(), joining.exception()
        yield Door(url, front, http)


@contextmanager
def door_process(
    redis_url: str, provider_url: str, *, host: str = "127.0.0.1", **env: str
) -> Iterator[tuple[str, Running]]:
    """``brimful serve --port 0``: its base URL, and the process."""
    env = {"BRIMFUL_REDIS_URL": redis_url, "ACS_API_BASE": provider_url, "ACS_API_KEY": KEY, **env}
    with Running("serve", "--host", host, "--port", "0", stdin=None, **env) as running:
        yield running.line_with("http://").strip(), running


def until_ready(url: str) -> None:
    """Wait until a front door in another process lets requests in."""

    def ready() -> bool:
        try:
            with urllib.request.urlopen(url.removesuffix("v1") + "readyz", timeout=60) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError:
            return False

    wait_until(ready, "the front door to be ready")


async def until_active(gateway: Any, count: int) -> None:
    """Wait until so many requests are active at an in-process gateway."""
    await wait_until_async(lambda: gateway.slots.active == count, f"{count} active requests")
