"""Providers of one handler, on real sockets."""

from __future__ import annotations

import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(
    handler: Handler, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> AsyncIterator[str]:
    """The server's root URL."""
    server = web.Server(handler)
    runner = web.ServerRunner(server)
    await runner.setup()
    site = web.TCPSite(runner, host, 0, ssl_context=tls)
    await site.start()
    try:
        port = runner.addresses[0][1]
        name = f"[{host}]" if ":" in host else host
        yield f"{'https' if tls else 'http'}://{name}:{port}"
    finally:
        await runner.cleanup()


class Completions:
    """Answers every request with the choices it asks for, and records it."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.peers: Counter[Any] = Counter()

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.json()
        assert request.transport is not None
        self.peers[request.transport.get_extra_info("peername")] += 1
        self.requests.append((request.path_qs, dict(request.headers), body))
        n = body.get("n", 1)
        if "messages" in body:
            choices = [
                {"index": i, "message": {"role": "assistant", "content": "Hi."}, "finish_reason": "stop"}
                for i in range(n)
            ]
        else:
            choices = [{"index": i, "text": " hi", "finish_reason": "length"} for i in range(n)]
        return web.json_response({"choices": choices})
