"""Connections of the coordinator's own: never pooled, so that no reply can reach anybody but who asked.

A call that fails or is cancelled drops its connection; what was on its way is read by nobody.
"""

from __future__ import annotations

import asyncio
from typing import Any

import redis.exceptions
from redis.asyncio.connection import AbstractConnection

from brimful.state.redis_url import close_redis_client, redis_client
from brimful_worker.broker.hiredis_packing import packed
from brimful_worker.liveness.boot_time import boot_time

CONNECT_S = 2.0
CALL_S = 2.0


class LinkDown(Exception):
    """The server cannot be reached, or does not serve. ``str()`` says why, without passwords."""


class Connection:
    """One connection. ``connect`` as often as needed, ``close`` at the end."""

    def __init__(self, url: str, name: str) -> None:
        # RESP2 and no time-out of the connection's own: calls bring theirs, and the push link waits for ever
        client = redis_client(
            url,
            decode_responses=False,
            protocol=2,
            socket_timeout=None,
            socket_connect_timeout=CONNECT_S,
            health_check_interval=0,
            client_name=name,
        )
        self._client = packed(client)
        self._connection: AbstractConnection | None = None
        self.call_s = CALL_S

    @property
    def connected(self) -> bool:
        return self._connection is not None and self._connection.is_connected

    async def connect(self) -> None:
        """A new connection, with the old one dropped. Raises LinkDown."""
        await self.close()
        self._connection = self._client.connection_pool.make_connection()  # type: ignore[no-untyped-call]
        try:
            async with asyncio.timeout(CONNECT_S + 1):
                await self._connection.connect()
        except (redis.exceptions.RedisError, OSError, TimeoutError) as error:
            await self.close()
            raise LinkDown(_reason(error)) from None
        except BaseException:
            await self.close()
            raise

    async def call(self, *command: Any) -> Any:
        """One command's reply. Raises LinkDown, and redis-py's ResponseError when the server refuses the command."""
        if self._connection is None:
            raise LinkDown("not connected")
        try:
            async with asyncio.timeout(self.call_s):
                await self._connection.send_command(*command)
                return await self._connection.read_response()
        except (redis.exceptions.ReadOnlyError, redis.exceptions.BusyLoadingError) as error:
            await self.close()  # a demoted or a starting server: look for the right one
            raise LinkDown(_reason(error)) from None
        except redis.exceptions.ResponseError:
            raise
        except (redis.exceptions.RedisError, OSError, TimeoutError) as error:
            await self.close()
            raise LinkDown(_reason(error)) from None
        except BaseException:
            await self.close()
            raise

    async def next_push(self) -> Any:
        """The next message of a subscribed link; waits for ever. Raises LinkDown."""
        if self._connection is None:
            raise LinkDown("not connected")
        try:
            return await self._connection.read_response()
        except (redis.exceptions.RedisError, OSError) as error:
            await self.close()
            raise LinkDown(_reason(error)) from None

    def abort(self) -> None:
        """Break the connection; whoever reads from it meets LinkDown."""
        writer = getattr(self._connection, "_writer", None)
        if writer is not None:
            writer.transport.abort()

    async def dispose(self) -> None:
        """Close for good."""
        await self.close()
        await close_redis_client(self._client)

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)


class CommandLink(Connection):
    """The link that speaks; it knows which server it speaks to, and how old that is."""

    server = ""

    async def connect(self) -> None:
        await super().connect()
        try:
            answer = await self.call("INFO", "server")
        except redis.exceptions.ResponseError as error:
            await self.close()
            raise LinkDown(_reason(error)) from None
        text = answer if isinstance(answer, bytes) else str(answer).encode()
        fields = dict(line.split(b":", 1) for line in text.splitlines() if b":" in line)
        self.server = fields.get(b"run_id", b"").decode()
        # whole seconds less whole seconds: the server may be a second younger than it says
        self._born = boot_time() - max(0.0, float(fields.get(b"uptime_in_seconds", b"0")) - 1)

    @property
    def uptime_s(self) -> float:
        """The server's age at least."""
        return boot_time() - self._born


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__
