"""A server that writes what a test wants, byte by byte, and the provider's HTTP client that asks it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

from brimful_worker.provider.answers.answer import Answer, TransportError
from brimful_worker.provider.transport.http_client import HttpClient, Listen
from support.fake_admission import FakeLease

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter, int], Awaitable[None]]


class Bench:
    """A client and a server; ``serve(reader, writer, number)`` handles the number-th connection, from 1 on."""

    def __init__(
        self,
        serve: Serve,
        max_bytes: int = 2**20,
        tls: tuple[Path, ssl.SSLContext] | None = None,
        timeout_s: float = 20,
    ) -> None:
        self._serve = serve
        self._tls = tls
        trusted = ssl.create_default_context(cafile=tls[0]) if tls else True
        self._http = HttpClient(headers={}, timeout_s=timeout_s, connect_timeout_s=5, max_bytes=max_bytes, tls=trusted)
        self.connections = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Bench:
        context = self._tls[1] if self._tls else None
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=context, backlog=256)
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()
        for writer in self._writers:
            writer.transport.abort()
        self._server.close()
        await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        try:
            await self._serve(reader, writer, self.connections)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def ask(
        self, body: bytes = b"{}", lease: FakeLease | None = None, listen: Listen | None = None
    ) -> Answer | TransportError:
        route = self._http.route("POST", self.url, {})
        async with asyncio.timeout(60):
            return await self._http.exchange(route, body, lease or FakeLease(), listen=listen)

    async def close_client(self) -> None:
        await self._http.aclose()


async def asked(reader: asyncio.StreamReader) -> int:
    """Read a request's head; returns the length of its body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    return int(head.lower().split("content-length: ")[1].split("\r\n")[0])


async def whole(reader: asyncio.StreamReader) -> None:
    await reader.readexactly(await asked(reader))


def answer(text: str, status: int = 200) -> bytes:
    return f"HTTP/1.1 {status} Reason\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()
