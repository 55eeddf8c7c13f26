"""Sends shards: first to the run's ledger, then to Celery's queues.

The ledger therefore knows everything that is in a queue. If the submitter dies in between, the run's next submitter
withdraws the shard and plans its lines again. While Redis is unreachable, shards wait here.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

from brimful.addresses import FleetAddress
from brimful.celery import app_for
from brimful.dispatch.inflight import SHARD_BYTES, InFlight, Shard
from brimful.dispatch.ledger import SUSPECT, RunLedger
from brimful.names import TASK_SHARD
from brimful.packing.units import WEIGHT, manifest_message
from brimful.schema import MESSAGES
from brimful.state.rabbitmq.reach import broker_errors, raise_if_refused
from brimful.state.redis_retry import REDIS_ERRORS, RetryPolicy, retry_until_available

_SHARDS_AT_ONCE = 64
_PAUSE_S = 0.5


class Enqueuer:
    """Sends what :attr:`InFlight.unsent` holds. Publishing blocks, so it has a thread and a connection of its own."""

    def __init__(
        self, address: FleetAddress, run: str, ledger: RunLedger, in_flight: InFlight, weight: float = 1.0
    ) -> None:
        self._run = run
        self._marks = {"schema": MESSAGES} | ({WEIGHT: weight} if weight != 1 else {})
        self._ledger = ledger
        self._app = app_for(address)
        self._rabbitmq_url = address.rabbitmq_url
        self._in_flight = in_flight
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="brimful-publish")
        self._closing = threading.Event()
        self._context = copy_context()  # its span is the parent of the shards'
        self._connection: Any = None
        self._producer: Any = None

    async def run(self) -> None:
        """Never returns. Raises FleetError when Redis or RabbitMQ refuses."""
        unsent = self._in_flight.unsent
        while True:
            shards = [await unsent.get()]
            size = shards[0].size
            while not unsent.empty() and len(shards) < _SHARDS_AT_ONCE and size < 4 * SHARD_BYTES:
                shards.append(unsent.get_nowait())
                size += shards[-1].size
            await self.enqueue(shards)

    async def enqueue(self, shards: list[Shard]) -> None:
        """Also for shards that were enqueued before: the shard's id is its task's id, so a second message is harmless.

        Returns when the queues have all of them, however long Redis is unreachable; at once when closed meanwhile.
        Raises FleetError when Redis or RabbitMQ refuses.
        """
        rows = {
            shard.id: {id: packed.manifest for id, packed in shard.requests.items()}
            for shard in shards
            if shard.requests
        }
        if rows:
            await retry_until_available(lambda: self._ledger.record(rows))
        if dropped := [id for id in rows if id not in self._in_flight.shards]:  # by a stop, during the wait for Redis
            await retry_until_available(lambda: self._ledger.withdraw(dropped))
        cancelled = {shard.id: list(rows[shard.id].keys() - shard.requests) for shard in shards if shard.id in rows}
        if cancelled := {shard: ids for shard, ids in cancelled.items() if ids}:
            await retry_until_available(lambda: self._ledger.cancel(cancelled))
        messages = [self._message(shard) for shard in shards if shard.requests]
        await asyncio.get_running_loop().run_in_executor(self._thread, self._context.run, self._publish, messages)
        for shard in shards:
            shard.enqueued_at = time.monotonic()

    def close(self) -> None:
        """Give up what is being sent."""
        self._closing.set()

    async def aclose(self) -> None:
        self.close()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._disconnect)
        self._thread.shutdown(wait=False)

    def _message(self, shard: Shard) -> dict[str, Any]:
        """What Celery's ``send_task`` takes; the task is documented at :data:`brimful.shard`."""
        requests = []
        for id, packed in shard.requests.items():
            units = manifest_message(packed.manifest)
            marks = {**self._marks, SUSPECT: True} if packed.pack_key.suspect else self._marks
            requests.append({"id": id, "units": units, "request": packed.message(shard.queue), **marks})
        return {"args": [self._run, shard.id, requests], "task_id": shard.id, "queue": shard.queue}

    def _publish(self, messages: list[dict[str, Any]]) -> None:
        """Raises FleetError when a server refuses."""
        policy = RetryPolicy(server="Redis" if self._rabbitmq_url is None else "RabbitMQ")
        errors: tuple[type[Exception], ...] = (*REDIS_ERRORS, *broker_errors())
        while messages and not self._closing.is_set():
            try:
                self._send(messages[0])
            except errors as error:
                self._disconnect()
                if self._rabbitmq_url is not None:
                    raise_if_refused(self._rabbitmq_url, error)
                policy.check(error)
                self._closing.wait(_PAUSE_S)
            else:
                messages.pop(0)

    def _send(self, message: dict[str, Any]) -> None:
        if self._producer is None:
            self._connection = self._app.connection_for_write()
            self._producer = self._app.amqp.Producer(self._connection, auto_declare=False)
        self._app.send_task(TASK_SHARD, **message, ignore_result=True, retry=False, producer=self._producer)

    def _disconnect(self) -> None:
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(Exception):  # it may be broken, and is thrown away
                connection.release()
