"""Workers without Celery: real shard runners in the test's process take shards' messages from the queues."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from redis import RedisError

from brimful.names import QUEUES
from brimful.outcome import Cause, Failure, Outcome
from brimful.profile import get_profile
from brimful.request import Request
from brimful.runtime.aio import cancel_and_wait
from brimful.state.broker_queues import UNACKED, ShardMessage, parse_message
from brimful.state.redis_url import redis_client
from brimful_worker.shards.shard import ShardRunner

Answer = Callable[[Request], Awaitable[Failure | None]]


async def at_once(request: Request) -> Failure | None:
    return None


def completion(request: Request) -> dict[str, Any]:
    """A complete answer; every text is ``prompt#choice``."""
    texts = [f"{prompt}#{choice}" for prompt in request.prompts for choice in range(request.n)]
    return {
        "model": request.fields.get("model", "llama-8b"),
        "choices": [{"index": i, "text": text, "finish_reason": "stop"} for i, text in enumerate(texts)],
        "usage": {"prompt_tokens": 1, "completion_tokens": len(texts), "total_tokens": 1 + len(texts)},
    }


class StubSampler:
    """Runs ``slots`` requests at a time; each awaits ``answer``, which may return a failure instead of a completion."""

    def __init__(self, answer: Answer = at_once, slots: int = 16) -> None:
        self.answer = answer
        self.slots = asyncio.Semaphore(slots)
        self.asked: list[Request] = []
        self.sampled: dict[str, int] = {}
        """Prompt → rollouts sampled of it."""
        self.active = self.peak = 0

    async def sample(
        self, request: Request, *, scope: str = "", on_wire: Callable[[bool], None] | None = None, **_: Any
    ) -> Outcome:
        loop = asyncio.get_running_loop()
        async with self.slots:
            if on_wire is not None:
                on_wire(True)
            self.asked.append(request)
            self.active += 1
            self.peak = max(self.peak, self.active)
            began = loop.time()
            try:
                failure = await self.answer(request)
            finally:
                self.active -= 1
            seconds = max(loop.time() - began, 1e-4)
        if failure is not None:
            return Outcome(request.id, failure=failure, attempts=1, provider_s=seconds)
        for prompt in request.prompts:
            self.sampled[str(prompt)] = self.sampled.get(str(prompt), 0) + request.n
        return Outcome(request.id, completion=completion(request), attempts=1, provider_s=seconds)


def _parse(fields: Mapping[str, Any]) -> Request:
    return Request.parse(fields, get_profile("acs"))


class StubFleet:
    """Takes shards while ``popping`` is set."""

    def __init__(self, url: str, sampler: Any, workers: int) -> None:
        self._client = redis_client(url)
        self._runners = [
            ShardRunner(sampler.sample, url, f"stub{place}", asyncio.Event(), _parse, check_s=0.1)
            for place in range(workers)
        ]
        self._stack = contextlib.AsyncExitStack()
        self.popping = asyncio.Event()
        self.popping.set()
        self.shards: list[str] = []
        self.running: set[asyncio.Task[Any]] = set()
        self._pop: asyncio.Task[None] | None = None

    async def start(self) -> None:
        for runner in self._runners:
            await self._stack.enter_async_context(runner)
        self._pop = asyncio.create_task(self._main())

    async def aclose(self) -> None:
        assert self._pop is not None
        await cancel_and_wait([self._pop])
        await cancel_and_wait(self.running)  # only now: until it ends, it may begin another shard
        await self._stack.aclose()
        await self._client.aclose()

    def die(self) -> None:
        """Cancel all running shards, as the workers' death would: their messages stay unacknowledged."""
        for task in self.running:
            task.cancel()

    async def _main(self) -> None:
        while True:
            await self.popping.wait()
            with contextlib.suppress(OSError, Exception):
                popped: Any = await self._client.brpop([*QUEUES], timeout=1)
                if popped is None:
                    continue
                message = parse_message(popped[1])
                assert message is not None
                self.shards.append(message.shard)
                runner = self._runners[len(self.shards) % len(self._runners)]
                with contextlib.suppress(RedisError):
                    unacked = json.dumps([popped[1], "", popped[0]])
                    await self._client.hset(UNACKED, message.shard, unacked)
                task = asyncio.create_task(self._run(runner, message))
                self.running.add(task)
                task.add_done_callback(self.running.discard)

    async def _run(self, runner: ShardRunner, message: ShardMessage) -> None:
        await runner.run(message.run, message.shard, message.requests)
        with contextlib.suppress(RedisError):
            await self._client.hdel(UNACKED, message.shard)


@contextlib.asynccontextmanager
async def stub_fleet(url: str, sampler: Any, workers: int = 2) -> AsyncIterator[StubFleet]:
    fleet = StubFleet(url, sampler, workers)
    await fleet.start()
    try:
        yield fleet
    finally:
        await fleet.aclose()


async def refuse_thirteen(request: Request) -> Failure | None:
    if "p13" in request.prompts:
        return Failure(Cause.CONTENT_FILTER, "no", 400, permanent=True)
    return None


class Background:
    """Stub workers on an event loop of their own, for clients that block."""

    def __init__(self, url: str, sampler: StubSampler) -> None:
        self._url, self._sampler = url, sampler
        self._ready, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))

    async def _main(self) -> None:
        async with stub_fleet(self._url, self._sampler):
            self._ready.set()
            await asyncio.to_thread(self._over.wait)

    def __enter__(self) -> StubSampler:
        self._thread.start()
        assert self._ready.wait(60)
        return self._sampler

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
