"""Flower misses events while it, or Redis, is away: afterwards it shows the states that Redis and the workers know."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import urllib.request
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from celery import Celery
from celery.result import AsyncResult

from brimful.names import TASK_SHARD
from brimful_worker.local.server.valkey import Valkey, free_port
from support.commands import Running, command, environment, write_prompts
from support.fleets import declare_new
from support.pool_worker import Background, client
from support.provider_server import serving
from support.proxy import Proxy
from support.waiting import wait_until

CONFIG = Path(__file__).parents[2] / "ops" / "flower" / "flowerconfig.py"
LOGIN = {"Authorization": f"Basic {b64encode(b'brimful:hush').decode()}"}
WAIT_S = 90.0


class Flower(Background):
    """In the shipped configuration."""

    def __init__(self, redis_url: str, directory: Path) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        arguments = [sys.executable, "-m", "celery", "-A", "brimful", "flower", f"--conf={CONFIG}", f"--port={port}"]
        env = environment(BRIMFUL_REDIS_URL=redis_url, BRIMFUL_FLOWER_PASSWORD="hush")
        super().__init__(arguments, {**env, "BRIMFUL_FLOWER_DB": str(directory / "history")})

    def ready(self) -> Flower:
        wait_until(lambda: "one@test" in self._ask("/api/workers"), "the worker in Flower", WAIT_S)
        return self

    def tasks(self) -> dict[str, Any]:
        return dict(json.loads(self._ask("/api/tasks") or "{}"))

    def states(self, ids: list[str]) -> list[str]:
        tasks = self.tasks()
        return [tasks[id]["state"] if id in tasks else "unknown" for id in ids]

    def shards(self) -> list[str]:
        return [id for id, task in self.tasks().items() if task["name"] == TASK_SHARD]

    def shows(self, ids: list[str], states: Callable[[], list[str]], what: str) -> None:
        wait_until(lambda: self.states(ids) == states(), what, WAIT_S)

    def _ask(self, path: str) -> str:
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, headers=LOGIN), timeout=60) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""


@dataclass
class Provider:
    """Answers when it is released, until it holds answers back again."""

    url: str
    release: Callable[[], object]
    hold: Callable[[], object]


@asynccontextmanager
async def provider() -> AsyncIterator[Provider]:
    released, loop = asyncio.Event(), asyncio.get_running_loop()

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        prompt = (await request.json())["prompt"]
        await released.wait()
        if "broken" in prompt:
            return web.json_response({"error": {"message": "no such thing", "code": "bad_request"}}, status=400)
        return web.json_response({"choices": [{"index": 0, "text": " hi", "finish_reason": "length"}]})

    async with serving(answer) as url:
        release, hold = (partial(loop.call_soon_threadsafe, call) for call in (released.set, released.clear))
        yield Provider(f"{url}/v1", release, hold)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Valkey]:
    """It keeps its memory through kill -9."""
    with Valkey(tmp_path / "fleet", appendonly=True, options=("appendfsync always",)) as server:
        declare_new(server, "sk-f")
        yield server


def worker(server: Valkey, provider: Provider) -> Background:
    env = environment(ACS_API_BASE=provider.url, ACS_API_KEY="sk-f", BRIMFUL_REDIS_URL=server.url)
    return Background(command("worker", "--name", "one@test"), env)


def enqueue(service: Celery) -> list[AsyncResult]:
    """All but the last succeed."""
    prompts = [*(f"prompt {number}" for number in range(13)), "broken"]
    return [service.send_task("brimful.sample", (prompt,), {"max_tokens": 2}) for prompt in prompts]


def states_of(results: list[AsyncResult]) -> Callable[[], list[str]]:
    return lambda: [result.state for result in results]


async def test_flower_loses_its_connection_and_then_redis_goes_away(server: Valkey, tmp_path: Path) -> None:
    """Singles, a single that fails, one that is revoked, and a run's shard, whose result is not stored."""

    def story(provider: Provider, way: Proxy, loop: asyncio.AbstractEventLoop) -> None:
        def connected(yes: bool) -> None:
            way.refuse = not yes
            if not yes:
                loop.call_soon_threadsafe(way.cut)

        source, out = write_prompts(tmp_path / "in.jsonl", 1), tmp_path / "out.jsonl"
        env = {"ACS_API_BASE": provider.url, "ACS_API_KEY": "sk-f", "BRIMFUL_REDIS_URL": server.url}
        with (
            worker(server, provider).ready(),
            Flower(way.url, tmp_path) as flower,
            client(server.url) as service,
        ):
            flower.ready()
            with Running("run", source, "-o", out, "--max-tokens", "2", **env) as run:
                [shard] = wait_until(flower.shards, "the shard in Flower", WAIT_S)
                results = enqueue(service)
                ids = [shard, *(result.id for result in results)]
                flower.shows(ids, lambda: ["STARTED"] * len(ids), "all tasks in Flower")
                connected(False)
                results[0].revoke(terminate=True)
                wait_until(results[0].ready, "the revocation", WAIT_S)
                provider.release()
                wait_until(lambda: all(result.ready() for result in results), "the results", WAIT_S)
                assert run.process.wait(WAIT_S) == 0
            assert flower.states(ids) == ["STARTED"] * len(ids)
            connected(True)
            flower.shows(ids, lambda: ["SUCCESS", *states_of(results)()], "Flower to know the ends")
            assert states_of(results)() == ["REVOKED", *["SUCCESS"] * 12, "FAILURE"]
            tasks = flower.tasks()
            assert "no such thing" in tasks[results[-1].id]["exception"]
            assert abs(tasks[results[1].id]["succeeded"] - time.time()) < 600
            provider.hold()
            redis_goes_away(provider, flower, service)

    def redis_goes_away(provider: Provider, flower: Flower, service: Celery) -> None:
        results = enqueue(service)
        ids = [result.id for result in results]
        flower.shows(ids, lambda: ["STARTED"] * len(ids), "all tasks in Flower")
        server.kill()
        provider.release()
        server.start()
        wait_until(lambda: all(result.ready() for result in results), "the results", WAIT_S)
        flower.shows(ids, states_of(results), "Flower to know the ends")
        assert states_of(results)() == [*["SUCCESS"] * 13, "FAILURE"]

    async with provider() as there, Proxy(server.port) as way:
        await asyncio.to_thread(story, there, way, asyncio.get_running_loop())
