"""A second, independent mock gateway: small, strict, and without any code of the product.

It counts what reaches it, and refuses what exceeds its limits. A request stays active until its answer is due, even if
its client has disconnected. Run as a process: ``python -m support.strict_gateway --slots 16 …``; it prints its URL.

Faults on request (``POST /faults``, name → probability): ``429``, ``500``, ``reset``, and ``hang``, until the client
disconnects. A prompt that contains POISON hangs too; ``/poison`` lists the ports of the clients that wait for one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import time
import urllib.request
from collections import Counter, deque
from types import TracebackType
from typing import Any

from aiohttp import web

from support.forked import Forked

POISON = "the poison"


class StrictGateway:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.active = 0
        self.peak_active = 0
        self.arrivals: list[float] = []
        self.window: deque[float] = deque()
        self.most_in_window = 0
        self.statuses: Counter[int] = Counter()
        self.prompts: Counter[str] = Counter()
        self.fields: set[str] = set()
        self.keys: set[str] = set()
        self.slot_seconds = 0.0
        self.random = random.Random(options.seed)
        self.faults: dict[str, float] = {}
        self.faulted: Counter[str] = Counter()
        self.refused: list[float] = []
        self.poisoned: set[int] = set()
        """Ports of the clients that wait for a poison's answer."""

    async def completions(self, request: web.Request) -> web.Response:
        now = time.monotonic()
        self.keys.add(request.headers.get("Authorization", ""))
        self.arrivals.append(now)
        while self.window and self.window[0] <= now - self.options.window:
            self.window.popleft()
        self.window.append(now)
        self.most_in_window = max(self.most_in_window, len(self.window))
        if len(self.window) > self.options.starts or self.active >= self.options.slots:
            self.refused.append(now)
            return self._too_much()
        fault = self._fault()
        if fault == "429":
            return self._too_much()
        self.active += 1
        self.peak_active = max(self.peak_active, self.active)
        try:
            body = await request.json()
            self.fields.update(body)
            prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
            n = body.get("n", 1)
            o = self.options
            await asyncio.sleep(o.latency + self.random.uniform(-o.spread, o.spread) + o.per_choice * len(prompts) * n)
            if fault == "hang" or any(POISON in str(prompt) for prompt in prompts):
                await self._until_disconnected(request, poison=fault != "hang")
            if fault == "500":
                return self._answer(500, {"error": {"message": "a fault"}})
            if fault == "reset" and request.transport is not None:
                request.transport.abort()
            for prompt in prompts:
                self.prompts[json.dumps(prompt)] += 1
            choices = [
                {"index": p * n + i, "text": f" {prompt} → {i}", "finish_reason": "length", "logprobs": None}
                for p, prompt in enumerate(prompts)
                for i in range(n)
            ]
            usage = {"prompt_tokens": 4 * len(prompts), "completion_tokens": 2 * len(choices), "total_tokens": 0}
            usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
            return self._answer(
                200, {"id": "c", "object": "text_completion", "model": "m", "choices": choices, "usage": usage}
            )
        finally:
            self.active -= 1
            self.slot_seconds += time.monotonic() - now

    async def ledger(self, _: web.Request) -> web.Response:
        twice = sum(count > 1 for count in self.prompts.values())
        return web.json_response(
            {
                "peak_active": self.peak_active,
                "active": self.active,
                "most_in_window": self.most_in_window,
                "arrivals": len(self.arrivals),
                "span_s": self.arrivals[-1] - self.arrivals[0] if self.arrivals else 0.0,
                "times": [at - self.arrivals[0] for at in self.arrivals],
                "statuses": {str(status): count for status, count in self.statuses.items()},
                "prompts": len(self.prompts),
                "sampled": sum(self.prompts.values()),
                "sampled_twice": twice,
                "keys": len(self.keys),
                "fields": sorted(self.fields),
                "slot_seconds": self.slot_seconds,
                "faulted": dict(self.faulted),
                "refused": len(self.refused),
            }
        )

    def _fault(self) -> str | None:
        draw = self.random.random()
        for name, probability in self.faults.items():
            if draw < probability:
                self.faulted[name] += 1
                return name
            draw -= probability
        return None

    async def _until_disconnected(self, request: web.Request, *, poison: bool) -> None:
        if (transport := request.transport) is None:
            return
        port = transport.get_extra_info("peername")[1]
        if poison:
            self.poisoned.add(port)
        while not transport.is_closing():  # noqa: ASYNC110  # aiohttp has no event for it
            await asyncio.sleep(0.02)
        if poison:
            self.poisoned.discard(port)

    def _too_much(self) -> web.Response:
        return self._answer(429, {"error": {"message": "too much", "code": "rate_limited"}}, {"Retry-After": "1"})

    async def set_faults(self, request: web.Request) -> web.Response:
        self.faults = dict(await request.json())
        return web.json_response(self.faults)

    async def poison(self, _: web.Request) -> web.Response:
        return web.json_response(list(self.poisoned))

    def _answer(self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> web.Response:
        self.statuses[status] += 1
        return web.json_response(body, status=status, headers=headers)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_post("/v1/completions", self.completions)
        app.router.add_get("/v1/models", lambda _: _models())
        app.router.add_get("/ledger", self.ledger)
        app.router.add_post("/faults", self.set_faults)
        app.router.add_get("/poison", self.poison)
        return app


async def _models() -> web.Response:
    return web.json_response({"object": "list", "data": []})


class StrictGatewayProcess:
    """The gateway in a process of its own, so that a busy client does not delay its clock."""

    def __init__(self, **options: float) -> None:
        self._options = options

    def __enter__(self) -> StrictGatewayProcess:
        arguments = [f"--{name.replace('_', '-')}={value}" for name, value in self._options.items()]
        self._process = Forked("support.strict_gateway", *arguments, env=os.environ, stderr=2)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        assert self.url, "the strict gateway did not start"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def ledger(self) -> dict[str, Any]:
        return dict(self._ask("/ledger"))

    def set_faults(self, **probabilities: float) -> None:
        self._ask("/faults", probabilities)

    def poisoned_ports(self) -> list[int]:
        """Local ports of the clients that wait for the answer to a poison."""
        return list(self._ask("/poison"))

    def _ask(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(self.url.removesuffix("/v1") + path, data, timeout=60) as answer:
            return json.load(answer)


async def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--starts", type=int, default=600)
    parser.add_argument("--window", type=float, default=60.0)
    parser.add_argument("--latency", type=float, default=0.5)
    parser.add_argument("--spread", type=float, default=0.0)
    parser.add_argument("--per-choice", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    gateway = StrictGateway(parser.parse_args())
    runner = web.AppRunner(gateway.app(), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
    await site.start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}/v1", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main())
