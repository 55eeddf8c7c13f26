"""A worker's place in its fleet: registers its key, and stops the worker when the fleet becomes another key's."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import redis

from brimful.config import REHEARSAL_KEY, Settings
from brimful.errors import BrokerUnreachable
from brimful.runtime.aio import until_tick
from brimful.state.fleets import Unsettled, check_registered, note_broker, register, register_replaced
from brimful.state.redis_retry import retry_until_available
from brimful.state.redis_url import address_of, sync_redis_client

log = logging.getLogger(__name__)

_LOOK_S = 3.0
_PATIENCE_S = 2 * _LOOK_S
"""How long another key's live workers have to register again when Redis has lost its memory."""
_RETRY_S = 0.5


class Membership:
    """:meth:`join` before the first task is taken, then :meth:`watch` as a task. On the event loop."""

    def __init__(self, settings: Settings, *, takes_tasks: bool) -> None:
        """``takes_tasks``: it is a worker, and not a front door."""
        self._address = address_of(settings)
        self._takes_tasks = takes_tasks
        self._tag = settings.key_tag
        self._replaced: str | None = None
        """The tag of the key before, if that is still registered."""
        self._changed = asyncio.Event()
        self._rehearsal = settings.api_key.get_secret_value().startswith(REHEARSAL_KEY)

    async def join(self) -> None:
        """Waits for Redis. Raises FleetTaken."""
        patient_until = time.monotonic() + _PATIENCE_S
        while True:
            patient = time.monotonic() < patient_until
            try:
                await retry_until_available(lambda: asyncio.to_thread(self._register, patient))  # noqa: B023
                return
            except Unsettled:
                await asyncio.sleep(_RETRY_S)

    def replace_key(self, settings: Settings) -> None:
        """The key's file has changed: :meth:`watch` registers the new key."""
        self._replaced = self._replaced or self._tag
        self._tag = settings.key_tag
        self._changed.set()

    async def watch(self) -> None:
        """Returns when another key has taken the fleet over, with the worker's warm shutdown begun."""
        client = sync_redis_client(self._address.redis_url)
        thread = ThreadPoolExecutor(1, thread_name_prefix="brimful-membership")
        check = partial(asyncio.get_running_loop().run_in_executor, thread, self._check, client)
        try:
            while True:
                self._changed.clear()
                if not await retry_until_available(check):
                    break
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), until_tick(_LOOK_S))
        finally:
            thread.submit(client.close)  # a check that is under way ends first
            thread.shutdown(wait=False)
        log.error("another API key has taken the fleet over (--take-over): this worker stops")
        os.kill(os.getpid(), signal.SIGTERM)

    def _register(self, patient: bool) -> None:
        with sync_redis_client(self._address.redis_url) as client:
            more = {"rehearsal": self._rehearsal, "patient": patient}
            try:
                register(client, self._address, self._tag, **more)
            except BrokerUnreachable as error:  # its queues show whether the fleet may be taken over
                raise Unsettled(str(error)) from None
            if self._takes_tasks:
                note_broker(client, self._address)

    def _check(self, client: redis.Redis) -> bool:
        tag, replaced = self._tag, self._replaced
        if replaced is not None:
            register_replaced(client, self._address.fleet, tag, replaced)
            self._replaced = None if tag == self._tag else replaced
        if self._takes_tasks:
            note_broker(client, self._address, if_missing=True)
        return check_registered(client, self._address.fleet, tag, rehearsal=self._rehearsal)
