"""Weighted shares of callers over all front doors of a fleet: ten times a second, each reports and learns.

Redis keeps the virtual time of each caller (shares.lua). Each front door orders its own waiters by it, and registers
them with places in the fleet's queue (:mod:`.order`) that put the waiters of all front doors into that order.

Failure mode: while no report is answered, each front door shares by itself, and between them it is first come, first
served. What waits at one that has died counts for :data:`_LEASE_S`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Callable
from importlib import resources
from typing import Any

from brimful.names import Workload
from brimful.state.keys import caller_shares_key
from brimful.state.redis_retry import REDIS_ERRORS
from brimful_worker.admission import Admission
from brimful_worker.admission.places import Places
from brimful_worker.admission.shared_queue import SharedQueue
from brimful_worker.liveness.boot_time import boot_time
from brimful_worker.serve.callers.order import Order
from brimful_worker.singles.pipeline import SharedPipeline

log = logging.getLogger(__name__)

_SCRIPT = resources.files("brimful_worker.serve.callers").joinpath("shares.lua").read_text("utf-8")
_EVERY_S = 0.1
_LEASE_S = 0.6
_PATIENCE_S = 0.5


class Shares:
    """One front door's."""

    def __init__(self, fleet: str, admission: Callable[[], Admission]) -> None:
        """``admission``: of the key in use, started."""
        self._fleet = fleet
        self._admission = admission
        self._process = secrets.token_hex(5)
        self._reported: set[Workload] = set()
        """Of which Redis knows waiters of this process."""

    async def watch(self, pipeline: SharedPipeline) -> None:
        """Never returns. A front door at which nothing happens sends nothing."""
        while True:
            await asyncio.sleep(_EVERY_S)
            for workload in Workload:
                queue = self._admission().shared_queue(workload)
                try:
                    reply = await self._report(pipeline, workload, queue)
                    queue.place(*self._places(reply, queue) if reply is not None else (None,))
                except (*REDIS_ERRORS, TimeoutError) as error:
                    log.debug("the shares of the callers could not be read: %s", type(error).__name__)
                    queue.place(None)

    async def _report(self, pipeline: SharedPipeline, workload: Workload, queue: SharedQueue) -> dict[str, Any] | None:
        """The answer; None if there is nothing to report."""
        granted, demands, now = queue.take_granted(), queue.demands(), boot_time()
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
        asking = pipeline.ask("EVAL", _SCRIPT, 1, key, self._process, lease_ms, json.dumps(report))
        reply: dict[str, Any] = json.loads(await asyncio.wait_for(asking, _PATIENCE_S))
        self._reported = self._reported | {workload} if demands else self._reported - {workload}
        return reply

    def _places(self, reply: dict[str, Any], queue: SharedQueue) -> tuple[Places | None, float]:
        """And by how much the places of registered waiters may differ from them."""
        order = Order(reply["waiting"], reply["served"])
        if len(reply["waiting"]) < 2 or order.callers < 2 or self._process not in reply["waiting"]:
            return None, 0.0
        queue.correct(reply["served"], reply["clock"])
        ages, step = order.ages(self._process, queue.registered)
        return Places(ages, step, boot_time()), order.tolerance_s
