"""The HTTP server of the mock gateway: aiohttp's low-level one, with connections counted.

This is the only module of the gateway that uses parts of aiohttp that its documentation does not promise. They were
read in aiohttp 3.14.5, and ``tests/unit/test_gateway_upstream.py`` fails when a release changes one:

- ``web_server.Server``: ``request_factory``, ``connection_made``, ``connection_lost``, ``pre_shutdown``, ``_loop``
- ``web_request.BaseRequest``: its constructor
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from brimful_worker.gateway.options import GatewayOptions
from brimful_worker.gateway.request_log import RequestLog

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_BACKLOG = 8192
_STOP_S = 0.01
"""Requests in flight are cut off when the gateway stops; aiohttp takes 0 for "wait forever"."""


class _Server(web.Server):
    def __init__(self, handler: Handler, options: GatewayOptions, log: RequestLog) -> None:
        super().__init__(
            handler,
            request_factory=self._request,
            handler_cancellation=True,  # a client that disconnects ends its request here too
            access_log=None,
            keepalive_timeout=75.0,  # as common load balancers have it; aiohttp's default is an hour
            max_headers=256,
        )
        self._log = log
        self._max_body = options.max_body_bytes

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._log.connected()

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._log.disconnected()

    def _request(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        return web.BaseRequest(message, payload, protocol, writer, task, self._loop, client_max_size=self._max_body)


async def listen(
    handler: Handler, options: GatewayOptions, log: RequestLog, host: str, port: int
) -> tuple[int, Callable[[], Awaitable[None]]]:
    """Start the server. Returns its port, and a coroutine function that closes it. Raises OSError."""
    server = _Server(handler, options, log)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(server, host, port, family=family, backlog=_BACKLOG, reuse_address=True)
    bound: int = listener.sockets[0].getsockname()[1]

    async def close() -> None:
        listener.close()
        server.pre_shutdown()
        await server.shutdown(_STOP_S)
        await listener.wait_closed()

    return bound, close
