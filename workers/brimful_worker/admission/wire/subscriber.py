"""Receives what Redis publishes to this process: grants, when to send the next command, new epochs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import redis.exceptions
from redis.asyncio import Redis

from brimful.runtime.json_bytes import decode
from brimful.state.keys import everyone_channel, process_channel
from brimful_worker.admission.wire.connection import Backoff, Connection, ConnectionDown

log = logging.getLogger(__name__)

_WAIT_S = 2.0


class Subscriber:
    """Failure mode: while it is not subscribed the coordinator polls, and Redis keeps the grants until then."""

    def __init__(self, url: str | Redis, tag: str, process: str, on_push: Callable[[dict[str, Any]], None]) -> None:
        self._connection = Connection(url, f"brimful-{process}-push")
        self._channels = (process_channel(tag, process), everyone_channel(tag))
        self._on_push = on_push
        self._subscribed = asyncio.Event()
        self._scope = asyncio.timeout(None)

    @property
    def subscribed(self) -> bool:
        return self._subscribed.is_set()

    async def wait_subscribed(self) -> None:
        """Returns after two seconds in any case: commands work without pushes."""
        try:
            async with asyncio.timeout(_WAIT_S):
                await self._subscribed.wait()
        except TimeoutError:
            log.debug("admission: not subscribed yet")

    def reset(self) -> None:
        """Subscribe again, on a new connection."""
        if self.subscribed and not self._scope.expired():
            self._scope.reschedule(0.0)

    async def run(self) -> None:
        backoff = Backoff()
        try:
            while True:
                try:
                    async with asyncio.timeout(None) as self._scope:
                        await self._subscribe()
                        backoff.reset()
                        while True:
                            self._receive(await self._connection.next_message())
                except (ConnectionDown, redis.exceptions.ResponseError, TimeoutError) as error:
                    log.debug("admission: not subscribed: %s", error)
                if self.subscribed:
                    self._subscribed.clear()
                    self._on_push({"epoch": None})  # send a command soon: something may have been pushed meanwhile
                await backoff.sleep()
        finally:
            self._subscribed.clear()
            await self._connection.dispose()

    async def _subscribe(self) -> None:
        await self._connection.connect()
        await self._connection.call("SUBSCRIBE", *self._channels)
        for _ in self._channels[1:]:
            await self._connection.next_message()
        self._subscribed.set()

    def _receive(self, message: Any) -> None:
        if isinstance(message, list) and message and message[0] == b"message":
            try:
                push = decode(message[2])
            except ValueError:
                log.warning("admission: ignored a message that is not JSON on channel %r", message[1])
                return
            self._on_push(push)
