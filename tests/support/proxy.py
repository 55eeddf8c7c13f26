"""A TCP proxy between a process and Redis that drops a command or a reply, delays, freezes, or cuts connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable


class Proxy:
    """``async with Proxy(port) as proxy``; ``proxy.url``. Faults are attributes; they apply to the next bytes."""

    def __init__(self, port: int, password: str | None = None) -> None:
        self.target = port
        self.port = 0
        self.drop_reply_to: bytes | None = None
        """Forward the next command that contains this, swallow its reply and cut its connection; once."""
        self.drop_request: bytes | None = None
        """Swallow the next command that contains this and cut its connection; once."""
        self.before: tuple[bytes, Callable[[], object]] | None = None
        """Call this before the next command that contains the bytes is passed on; once."""
        self.refuse = False
        """Accept no new connections; :meth:`cut` ends those that exist."""
        self.refuse_storing: bytes | None = None
        """An error reply (without its ``-``) to each transaction that stores a Celery result."""
        self.mute_subscribed = False
        """Swallow what the server sends to the connections that are subscribed now."""
        self.delay_s: Callable[[], float] | None = None
        """How long the next bytes take, for each direction of each connection; their order stays."""
        self.frozen = asyncio.Event()
        self.frozen.set()
        self.dropped = 0
        self.refused = 0
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._subscribed: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        await asyncio.sleep(0)  # connections accepted in this pass begin to be served, and so can be ended
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self, *, only_subscribed: bool = False) -> None:
        """Break all connections, or the subscribed ones only."""
        for client, server in list(self._pairs):
            if not only_subscribed or client in self._subscribed:
                client.transport.abort()
                server.transport.abort()

    def freeze(self) -> None:
        """Pass no bytes, and keep the connections."""
        self.frozen.clear()

    def thaw(self) -> None:
        self.frozen.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        to_server: asyncio.StreamWriter | None = None
        try:
            if self.refuse:
                self.refused += 1
                return
            try:
                from_server, to_server = await asyncio.open_connection("127.0.0.1", self.target)
            except OSError:
                return
            pair = (writer, to_server)
            self._pairs.add(pair)
            swallow = asyncio.Event()
            up = asyncio.create_task(self._up(reader, writer, to_server, swallow))
            down = asyncio.create_task(self._down(from_server, writer, swallow))
            await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
            for half in (up, down):
                half.cancel()
            await asyncio.gather(up, down, return_exceptions=True)
            self._pairs.discard(pair)
        except asyncio.CancelledError:
            return
        finally:
            writer.close()
            if to_server is not None:
                to_server.close()
            self._subscribed.discard(writer)
            self._tasks.discard(task)

    async def _up(
        self,
        reader: asyncio.StreamReader,
        client: asyncio.StreamWriter,
        to: asyncio.StreamWriter,
        swallow: asyncio.Event,
    ) -> None:
        line = _Line(self, to)
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 20):
                await self.frozen.wait()
                if b"SUBSCRIBE" in data:
                    self.mute_subscribed = False
                    self._subscribed.add(client)
                if self.before and self.before[0] in data:
                    call, self.before = self.before[1], None
                    call()
                if self.refuse_storing and b"SETEX" in data and b"celery-task-meta" in data:
                    self.refused += 1
                    client.write(b"+OK\r\n-%b\r\n+QUEUED\r\n-EXECABORT discarded\r\n" % self.refuse_storing)
                    continue
                if self.drop_request and self.drop_request in data:
                    self.drop_request = None
                    self.dropped += 1
                    return
                if self.drop_reply_to and self.drop_reply_to in data:
                    self.drop_reply_to = None
                    swallow.set()
                await line.carry(data)

    async def _down(self, reader: asyncio.StreamReader, to: asyncio.StreamWriter, swallow: asyncio.Event) -> None:
        line = _Line(self, to)
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 20):
                await self.frozen.wait()
                if swallow.is_set():
                    self.dropped += 1
                    return
                if self.mute_subscribed and to in self._subscribed:
                    continue
                await line.carry(data)


class _Line:
    """One direction of a connection."""

    def __init__(self, proxy: Proxy, to: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._to = to
        self._last = 0.0

    async def carry(self, data: bytes) -> None:
        """Pass the bytes on, now or after the delay."""
        if self._proxy.delay_s is None:
            self._to.write(data)
            await self._to.drain()
            return
        loop = asyncio.get_running_loop()
        self._last = max(self._last + 1e-6, loop.time() + self._proxy.delay_s())  # equal times would lose their order
        loop.call_at(self._last, self._write, data)

    def _write(self, data: bytes) -> None:
        if not self._to.is_closing():
            self._to.write(data)
