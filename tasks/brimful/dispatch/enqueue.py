"""Shards into Celery's queues, from a thread of its own: publishing blocks, and its connection outlives outages."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from celery import Celery
from kombu.exceptions import OperationalError

from brimful.names import TASK_SHARD
from brimful.state.redis_retry import REDIS_ERRORS, RetryPolicy

_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class ShardMessage:
    run: str
    shard: str
    queue: str
    requests: list[dict[str, Any]]
    """``{"id": …, "units": manifest, "request": fields}`` each."""


class Publisher:
    """One connection, several shards each time. Sending a shard twice is harmless: its id is its task's id."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="brimful-publish")
        self._closing = threading.Event()
        self._connection: Any = None
        self._producer: Any = None

    async def send(self, messages: Sequence[ShardMessage]) -> None:
        """Returns when the queues have all of them, however long Redis is away; at once when closed meanwhile.

        Raises FleetError when Redis is there and refuses.
        """
        await asyncio.get_running_loop().run_in_executor(self._thread, self._send, list(messages))

    def close(self) -> None:
        """Give up what is being sent."""
        self._closing.set()

    async def aclose(self) -> None:
        self.close()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._disconnect)
        self._thread.shutdown(wait=False)

    def _send(self, messages: list[ShardMessage]) -> None:
        policy = RetryPolicy()
        while messages and not self._closing.is_set():
            try:
                self._publish(messages[0])
            except (OperationalError, *REDIS_ERRORS) as error:
                self._disconnect()
                policy.check(error)
                self._closing.wait(_PAUSE_S)
            else:
                messages.pop(0)

    def _publish(self, message: ShardMessage) -> None:
        if self._producer is None:
            self._connection = self._app.connection_for_write()
            self._producer = self._app.amqp.Producer(self._connection, auto_declare=False)
        self._app.send_task(
            TASK_SHARD,
            args=[message.run, message.shard, message.requests],
            task_id=message.shard,
            queue=message.queue,
            ignore_result=True,
            retry=False,
            producer=self._producer,
        )

    def _disconnect(self) -> None:
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(Exception):  # it is broken, or it is ours to throw away
                connection.release()
