"""A Redis whose answers to the admission's commands the test chooses. It speaks RESP2 on a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

Reply = dict[str, Any] | str | None
"""An answer of the script, empty for none at all; the text of an error; None: the connection is cut."""


class ScriptedRedis:
    """``async with ScriptedRedis(answer) as server``; ``server.url``.

    ``answer`` gets the message of each EVALSHA. All other commands are answered as a server that evicts nothing does.
    """

    def __init__(self, answer: Callable[[dict[str, Any]], Reply]) -> None:
        self.answer = answer
        self.messages: list[dict[str, Any]] = []
        self.subscriptions: list[list[str]] = []
        """Channels of each connection that has subscribed."""
        self.refuse_subscribing = False
        self.refused = 0
        self.sections: list[str] = []
        """Of each INFO."""
        self.on_ping: Callable[[], object] = lambda: None
        self._subscribed: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> ScriptedRedis:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        await asyncio.sleep(0)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"

    def publish(self, message: dict[str, Any] | bytes, kind: bytes = b"message") -> None:
        """To the connection that has subscribed last, on the process's channel."""
        text = message if isinstance(message, bytes) else json.dumps(message).encode()
        channel = self.subscriptions[-1][0].encode()
        self._subscribed[-1].write(_array(_bulk(kind), _bulk(channel), _bulk(text)))

    def cut_subscriber(self) -> None:
        self._subscribed[-1].transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while (answer := self._reply(await _command(reader), writer)) is not None:
                writer.write(answer)
        except (asyncio.CancelledError, asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    def _reply(self, command: list[bytes], writer: asyncio.StreamWriter) -> bytes | None:
        match command[0].upper():
            case b"EVALSHA":
                message = json.loads(command[-3])
                self.messages.append(message)
                reply = self.answer(message)
                if isinstance(reply, str):
                    return b"-%b\r\n" % reply.encode()
                if not reply:
                    return None if reply is None else b""
                return _bulk(json.dumps(reply).encode())
            case b"SUBSCRIBE" if self.refuse_subscribing:
                self.refused += 1
                return b"-NOPERM no channels\r\n"
            case b"SUBSCRIBE":
                self.subscriptions.append([channel.decode() for channel in command[1:]])
                self._subscribed.append(writer)
                channels = enumerate(command[1:], 1)
                return b"".join(_array(_bulk(b"subscribe"), _bulk(name), b":%d\r\n" % n) for n, name in channels)
            case b"INFO":
                self.sections.append(command[1].decode())
                return _bulk(b"run_id:scripted\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n")
            case b"PING":
                self.on_ping()
                return b"+PONG\r\n"
        return b"+OK\r\n"


async def _command(reader: asyncio.StreamReader) -> list[bytes]:
    parts = []
    for _ in range(int((await reader.readuntil(b"\r\n"))[1:])):
        size = int((await reader.readuntil(b"\r\n"))[1:])
        parts.append((await reader.readexactly(size + 2))[:-2])
    return parts


def _bulk(value: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(value), value)


def _array(*parts: bytes) -> bytes:
    return b"*%d\r\n%b" % (len(parts), b"".join(parts))
