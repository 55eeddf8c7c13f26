"""One connection to Redis. Not pooled: no reply can reach another caller.

A call that fails or is cancelled closes the connection, so that a late reply is read by nobody.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import redis.exceptions
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection

from brimful.runtime.hiredis_packing import packed
from brimful_worker.admission.wire.clients import close_client, open_client

_CONNECT_S = 2.0
_REPLY_S = 2.0
_RETRY_FIRST_S, _RETRY_MOST_S = 0.05, 1.0


class ConnectionDown(Exception):
    """The server cannot be reached, or does not serve (loading, read-only). ``str()`` says why, without passwords."""

    timed_out = False
    """A reply did not come in time."""


class Backoff:
    """Pauses between tries: doubling, with jitter."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._next_s = _RETRY_FIRST_S

    async def sleep(self) -> None:
        seconds, self._next_s = self._next_s, min(2 * self._next_s, _RETRY_MOST_S)
        await asyncio.sleep(seconds * (0.5 + random.random() / 2))


class Connection:
    """Every method may raise ConnectionDown, and ``redis.exceptions.ResponseError`` for an error reply."""

    def __init__(self, url: str | Redis, name: str) -> None:
        # RESP2, and no timeout of redis-py's own: each call brings its own, and a subscriber waits for ever.
        client = open_client(
            url,
            decode_responses=False,
            protocol=2,
            socket_timeout=None,
            socket_connect_timeout=_CONNECT_S,
            health_check_interval=0,
            client_name=name,
        )
        self._source = url
        self._client = packed(client)
        self._connection: AbstractConnection | None = None
        self.reply_timeout_s = _REPLY_S

    @property
    def connected(self) -> bool:
        return self._connection is not None and self._connection.is_connected

    async def connect(self) -> None:
        """Open a new connection and close the old one."""
        await self.close()
        self._connection = self._client.connection_pool.make_connection()  # type: ignore[no-untyped-call]
        async with self._closed_on_failure() as connection, asyncio.timeout(_CONNECT_S + 1):
            await connection.connect()  # type: ignore[no-untyped-call]

    async def call(self, *command: Any) -> Any:
        """The reply to one command."""
        async with self._closed_on_failure() as connection:
            try:
                async with asyncio.timeout(self.reply_timeout_s):
                    await connection.send_command(*command)
                    return await connection.read_response()
            except TimeoutError:
                late = ConnectionDown(f"no reply within {self.reply_timeout_s:g} s")
                late.timed_out = True
                raise late from None

    async def call_many(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """The replies to several commands, sent together. An error reply is an item of the list."""
        async with self._closed_on_failure() as connection, asyncio.timeout(self.reply_timeout_s):
            packed = [part for command in commands for part in connection.pack_command(*command)]
            await connection.send_packed_command(packed, check_health=False)
            return [await self._reply(connection) for _ in commands]

    async def next_message(self) -> Any:
        """The next message of a subscribed connection; waits for ever."""
        async with self._closed_on_failure() as connection:
            return await connection.read_response()

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect(nowait=True)

    async def dispose(self) -> None:
        """Close for good."""
        await self.close()
        await close_client(self._client, self._source)

    @staticmethod
    async def _reply(connection: AbstractConnection) -> Any:
        try:
            return await connection.read_response()
        except redis.exceptions.ReadOnlyError:
            raise  # a replica: the connection is given up
        except redis.exceptions.ResponseError as error:
            return error

    @asynccontextmanager
    async def _closed_on_failure(self) -> AsyncIterator[AbstractConnection]:
        if self._connection is None:
            raise ConnectionDown("not connected")
        try:
            yield self._connection
        except BaseException as error:
            not_serving = isinstance(error, (redis.exceptions.ReadOnlyError, redis.exceptions.BusyLoadingError))
            if isinstance(error, redis.exceptions.ResponseError) and not not_serving:
                raise
            await self.close()
            if isinstance(error, (redis.exceptions.RedisError, OSError, TimeoutError)):
                raise ConnectionDown(str(error) or type(error).__name__) from None
            raise
