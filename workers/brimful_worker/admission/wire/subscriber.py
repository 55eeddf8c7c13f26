"""Listens for grants and calls: the push half of a process's talk with Redis. It sends nothing but SUBSCRIBE."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

import orjson
import redis.exceptions

from brimful_worker.admission.keys import Keys
from brimful_worker.admission.wire.connection import Connection, LinkDown

log = logging.getLogger(__name__)

_RETRY_FIRST_S, _RETRY_MOST_S = 0.05, 1.0
_AWAIT_S = 2.0


class Subscriber:
    """Failure mode: while it does not listen the coordinator polls, and what was pushed meanwhile is in the inbox."""

    def __init__(self, url: str, keys: Keys, process: str, on_push: Callable[[dict[str, Any]], None]) -> None:
        self._connection = Connection(url, f"brimful-{process}-push")
        self._channels = (keys.to + process, keys.everyone)
        self._on_push = on_push
        self._listening = asyncio.Event()

    @property
    def listening(self) -> bool:
        return self._listening.is_set()

    async def wait_listening(self) -> None:
        """Bounded: a server that lets us speak but not listen is still spoken to."""
        try:
            async with asyncio.timeout(_AWAIT_S):
                await self._listening.wait()
        except TimeoutError:
            log.debug("admission: not listening yet")

    def reset(self) -> None:
        """Listen on a new connection."""
        self._connection.abort()

    async def run(self) -> None:
        delay = _RETRY_FIRST_S
        try:
            while True:
                try:
                    await self._subscribe()
                    delay = _RETRY_FIRST_S
                    while True:
                        self._hear(await self._connection.next_push())
                except (LinkDown, redis.exceptions.ResponseError) as error:
                    log.debug("admission: not listening: %s", error)
                if self._listening.is_set():
                    self._listening.clear()
                    self._on_push({"epoch": None})  # speak soon: something may lie in the inbox
                await asyncio.sleep(delay * (0.5 + random.random() / 2))
                delay = min(2 * delay, _RETRY_MOST_S)
        finally:
            self._listening.clear()
            await self._connection.dispose()

    async def _subscribe(self) -> None:
        await self._connection.connect()
        await self._connection.call("SUBSCRIBE", *self._channels)
        for _ in self._channels[1:]:
            await self._connection.next_push()
        self._listening.set()

    def _hear(self, message: Any) -> None:
        if isinstance(message, list) and message and message[0] == b"message":
            try:
                push = orjson.loads(message[2])
            except ValueError:
                log.warning("admission: what came on a channel of ours is no JSON")
                return
            self._on_push(push)
