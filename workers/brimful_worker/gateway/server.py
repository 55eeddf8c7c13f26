"""The HTTP server under the gateway: aiohttp's low-level one, with connections counted."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

if TYPE_CHECKING:
    from brimful_worker.gateway.app import Gateway

_BACKLOG = 8192
_STOP_S = 0.01
"""What runs when the gateway stops is cut off; aiohttp takes 0 for "wait for ever"."""


class _Server(web.Server):
    def __init__(self, gateway: Gateway) -> None:
        super().__init__(
            gateway.handle,
            request_factory=self._request,
            handler_cancellation=True,  # a client that goes away ends its request here too
            access_log=None,
            keepalive_timeout=gateway.options.keepalive_s,
            max_headers=256,
        )
        self._ledger = gateway.ledger
        self._max_body = gateway.options.max_body_bytes

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._ledger.connected()

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        super().connection_lost(handler, exc)
        self._ledger.disconnected()

    def _request(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        return web.BaseRequest(message, payload, protocol, writer, task, self._loop, client_max_size=self._max_body)


async def listen(gateway: Gateway, host: str, port: int) -> tuple[int, Callable[[], Awaitable[None]]]:
    """(the port, a coroutine function that closes everything). Raises OSError where the port cannot be had."""
    server = _Server(gateway)
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
