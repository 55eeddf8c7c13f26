"""Redis commands of many coroutines and threads in one pipeline, so that each does not take a round trip of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from concurrent import futures
from copy import copy
from typing import Any

import redis.exceptions
from redis.exceptions import NoScriptError

from brimful.runtime.aio import cancel_and_wait
from brimful_worker.admission.policy import Pace
from brimful_worker.admission.wire.connection import Connection, ConnectionDown
from brimful_worker.lua_script import Script

_REPLY_S = 10.0


class SharedPipeline:
    """Sends what was asked while the previous pipeline was on its way. One connection for all.

    Replies are bytes, numbers, lists or None. A command fails with redis.RedisError: an error reply, or a
    ConnectionError, after which it may have been carried out or not.
    """

    def __init__(self, url: str, name: str) -> None:
        """``name``: the connection's in ``CLIENT LIST``."""
        self._connection = Connection(url, name)
        self._connection.reply_timeout_s = _REPLY_S
        self._waiting: list[tuple[tuple[Any, ...], asyncio.Future[Any] | futures.Future[Any] | None]] = []
        self._texts: dict[str, str] = {}
        """Of the scripts that were called, by SHA-1."""
        self._some = asyncio.Event()
        self._sender: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._sender = asyncio.create_task(self._send())

    async def aclose(self) -> None:
        """Commands that were not answered fail."""
        if self._sender is not None:
            await cancel_and_wait([self._sender])
            self._sender = None
        self._fail(self._waiting, redis.exceptions.ConnectionError("the worker stops"))
        self._waiting = []
        await self._connection.dispose()

    def ask(self, *command: Any) -> asyncio.Future[Any]:
        """The command's reply. Nobody needs to await it."""
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answered.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.add(command, answered)
        return answered

    def call(self, script: Script, keys: Sequence[str], *arguments: Any) -> asyncio.Future[Any]:
        """As :meth:`ask`, of a script."""
        self._texts[script.sha] = script.text
        return self.ask("EVALSHA", script.sha, len(keys), *keys, *arguments)

    def add(self, command: tuple[Any, ...], answered: asyncio.Future[Any] | futures.Future[Any] | None) -> None:
        """Send it with the others of this moment. Its reply becomes the result of ``answered``; None drops it."""
        self._waiting.append((command, answered))
        self._some.set()

    async def _send(self) -> None:
        loop = asyncio.get_running_loop()
        pace = Pace()
        while True:
            await self._some.wait()
            await asyncio.sleep(pace.wait_s(loop.time()))  # with 0, what else this pass of the loop asks goes along
            pace.sent(loop.time())
            self._some.clear()
            waiting, self._waiting = self._waiting, []
            try:
                if not self._connection.connected:
                    await self._connection.connect()
                replies = await self._call([command for command, _ in waiting])
            except ConnectionDown as error:
                self._fail(waiting, redis.exceptions.ConnectionError(str(error)))
                continue
            except redis.exceptions.RedisError as error:  # the server refuses the connection
                self._fail(waiting, error)
                continue
            except BaseException:
                self._fail(waiting, redis.exceptions.ConnectionError("the worker stops"))
                raise
            for (_, answered), reply in zip(waiting, replies, strict=True):
                if answered is None or answered.done():
                    continue
                if isinstance(reply, Exception):
                    answered.set_exception(reply)
                else:
                    answered.set_result(reply)

    async def _call(self, commands: list[tuple[Any, ...]]) -> list[Any]:
        """The replies. Scripts that Redis does not have, as after a restart, are called again, first with the text."""
        replies = await self._connection.call_many(commands)
        missing = {place: commands[place] for place, reply in enumerate(replies) if isinstance(reply, NoScriptError)}
        if missing:
            sent: set[str] = set()
            for place, (_, sha, *arguments) in missing.items():
                if sha not in sent:
                    missing[place] = ("EVAL", self._texts[sha], *arguments)
                    sent.add(sha)
            for place, reply in zip(missing, await self._connection.call_many([*missing.values()]), strict=True):
                replies[place] = reply
        return replies

    def _fail(self, waiting: list[Any], error: Exception) -> None:
        for _, answered in waiting:
            if answered is not None and not answered.done():
                with contextlib.suppress(futures.InvalidStateError):
                    answered.set_exception(copy(error))
