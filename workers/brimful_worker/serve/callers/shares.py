"""Shares a key's slots and starts among callers by weight, over all front doors of a fleet.

While callers wait, each front door reports ten times a second what waits and what was granted, and gets the reports of
the others. Redis keeps the virtual time of each caller (shares.lua). Each front door orders its own waiters by it, and
registers them with places in the fleet's queue (:mod:`.order`) that put the waiters of all front doors into that order.

Failure mode: while reports fail, each front door shares among its own callers, and between them it is first come,
first served. What waits at one that has died counts for :data:`_LEASE_S`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from redis.exceptions import ResponseError

from brimful.names import Workload
from brimful.state.keys import caller_shares_key
from brimful.state.redis_retry import REDIS_ERRORS
from brimful_worker.admission import Admission
from brimful_worker.admission.places import Places
from brimful_worker.admission.shared_queue import SharedQueue
from brimful_worker.liveness.boot_time import boot_time
from brimful_worker.serve.callers.clock import CallersClock, timed_script
from brimful_worker.serve.callers.order import Order
from brimful_worker.singles.pipeline import SharedPipeline

log = logging.getLogger(__name__)

_SCRIPT = timed_script("shares.lua")
_EVERY_S = 0.1
_LEASE_S = 0.6
_PATIENCE_S = 0.5


class Shares:
    """Orders the waiting requests of one front door among those of all, by their callers' weights."""

    def __init__(self, fleet: str, admission: Callable[[], Admission], clock: CallersClock) -> None:
        """``admission``: of the key in use, started."""
        self._fleet = fleet
        self._admission = admission
        self._clock = clock
        self._process = secrets.token_hex(5)
        self._reported: set[Workload] = set()
        """Of which Redis knows waiters of this process."""
        self._logged: set[str] = set()
        """Faults that are in the log."""
        self._requests = 0
        self._some = asyncio.Event()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Keeps the shares up to date during the block, in which a caller's request waits or is sent."""
        self._requests += 1
        self._some.set()
        try:
            yield
        finally:
            self._requests -= 1

    async def watch(self, pipeline: SharedPipeline) -> None:
        """Never returns. Sleeps while no caller has requests here."""
        while True:
            busy = False
            for workload in Workload:
                try:
                    busy |= await self._exchange(pipeline, workload)
                except Exception as error:
                    busy = True
                    self._failed(error)
            if not busy and not self._requests:
                self._some.clear()
                await self._some.wait()
            await asyncio.sleep(_EVERY_S)

    async def _exchange(self, pipeline: SharedPipeline, workload: Workload) -> bool:
        """Report what waits, and order it by the reply. Returns whether there was something to report."""
        queue = self._admission().shared_queue(workload)
        try:
            reply = await self._report(pipeline, workload, queue)
            queue.place(*self._places(reply, queue) if reply is not None else (None,))
        except BaseException:
            queue.place(None)
            raise
        return reply is not None

    def _failed(self, error: Exception) -> None:
        """Log the error without its text: a reply holds the names of callers."""
        name = type(error).__name__
        if isinstance(error, (*REDIS_ERRORS, TimeoutError)) and not isinstance(error, ResponseError):
            log.debug("the shares of the callers could not be read: %s", name)
        elif name not in self._logged:
            self._logged.add(name)
            trace = "".join(traceback.format_tb(error.__traceback__))
            log.error(
                "callers share by weight within each front door only, as the report to Redis fails (%s)\n%s",
                name,
                trace,
            )

    async def _report(self, pipeline: SharedPipeline, workload: Workload, queue: SharedQueue) -> dict[str, Any] | None:
        """The answer; None if there is nothing to report, as of requests without a caller, which have no weights."""
        granted = {flow: count for flow, count in queue.take_granted().items() if flow.name}
        demands, now = {name: each for name, each in queue.demands().items() if name}, boot_time()
        if not granted and not demands and workload not in self._reported:
            return None
        report = {
            "granted": {flow.name: (count, flow.weight) for flow, count in granted.items()},
            "waiting": {
                name: (each.weight, each.number, round((now - each.since) * 1000)) for name, each in demands.items()
            },
        }
        key = caller_shares_key(self._fleet, workload.value)
        lease_ms = round(_LEASE_S * 1000)
        asking = self._clock.call(pipeline, _SCRIPT, [key], self._process, lease_ms, json.dumps(report))
        reply: dict[str, Any] = json.loads(await asyncio.wait_for(asking, _PATIENCE_S))
        self._reported = self._reported | {workload} if demands else self._reported - {workload}
        return reply

    def _places(self, reply: dict[str, Any], queue: SharedQueue) -> tuple[Places | None, float]:
        """The places of this front door's waiters, and by how many seconds a registered waiter may differ from its own.

        None while the waiters of all front doors are of one caller, or none wait here.
        """
        order = Order(reply["waiting"], reply["served"])
        if not order.concerns(self._process):
            return None, 0.0
        queue.correct(reply["served"], reply["clock"])
        ages, step = order.ages(self._process, queue.registered)
        return Places(ages, step, boot_time()), order.tolerance_s
