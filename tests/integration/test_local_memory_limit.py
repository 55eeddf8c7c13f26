"""``BRIMFUL_WORKER_MAX_MEMORY``: a worker above it finishes what is on the wire, and another takes its place."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from support.fleets import fleet
from support.provider_server import serving
from support.waiting import wait_until

MB = 2**20
_DONE = json.dumps({"choices": [{"index": 0, "text": " done", "finish_reason": "length"}]}).encode()


async def test_a_worker_above_its_limit_ends_its_requests_and_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    release, loop = asyncio.Event(), asyncio.get_running_loop()
    asked: list[str] = []

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        """Large answers stay unfinished, and in the worker's memory, until they are released."""
        prompt = (await request.json())["prompt"]
        asked.append(prompt)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        if prompt.startswith("large"):
            for _ in range(40):
                await response.write(b" " * MB)
            await release.wait()
        await response.write(_DONE)
        await response.write_eof()
        return response

    def story(provider: Any) -> None:
        settings = {"worker_max_memory": "190MB", "slots": 4, "concurrency": 8}
        with fleet(monkeypatch, provider, workers=1, **settings) as there:
            [first] = there.local.worker_pids
            log = there.local.logs / "worker-1.log"
            large = [there.sample(f"large {number}") for number in range(4)]
            waiting = [there.sample(f"small {number}") for number in range(4)]
            wait_until(lambda: "more than BRIMFUL_WORKER_MAX_MEMORY = 190 MB" in log.read_text(), "the limit", 90)
            assert there.local.worker_pids == [first], "its requests are on the wire"
            loop.call_soon_threadsafe(release.set)
            for result in large + waiting:
                assert result.get(timeout=90)["choices"][0]["text"] == " done"
            wait_until(lambda: there.local.worker_pids not in ([], [first]), "another worker", 60)
            there.local.check()
        assert sorted(asked) == sorted([*(f"large {n}" for n in range(4)), *(f"small {n}" for n in range(4))])

    async with serving(answer) as url:
        await asyncio.to_thread(story, SimpleNamespace(url=f"{url}/v1"))
