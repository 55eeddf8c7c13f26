"""Admissions in the test's own process, for tests that kill no process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import redis

from brimful.state.keys import admission_keys
from brimful_worker.admission import NO_FLOW, Admission, Flow, Limits, mark_clean
from brimful_worker.admission.slot import Slot
from brimful_worker.local.server.valkey import Valkey
from support.waiting import wait_until_async

TAG = "tag"
KEYS = admission_keys(TAG)


def marked_clean(valkey: Valkey) -> redis.Redis:
    """A client of the server, on which the first process does not wait for others."""
    client = redis.Redis.from_url(valkey.url, decode_responses=True)
    mark_clean(client, TAG)
    return client


async def follow(server: redis.Redis, port: int) -> None:
    """The server takes the data of the one on this port in place of its own, and is then a primary again."""
    server.replicaof("127.0.0.1", port)
    await wait_until_async(lambda: server.info("replication").get("master_link_status") == "up", "in sync")
    server.replicaof("NO", "ONE")


@contextlib.asynccontextmanager
async def admissions(url: str, count: int, **limits: Any) -> AsyncIterator[list[Admission]]:
    """``count`` started admissions with the same limits (of :class:`Limits`)."""
    async with contextlib.AsyncExitStack() as stack:
        many = [Admission(url, TAG, Limits(**limits), name=f"a{i}") for i in range(count)]
        for one in many:
            await stack.enter_async_context(one)
        yield many


class Holding:
    """A task that holds a slot until :meth:`end`; ``granted`` is set when it has the slot."""

    def __init__(
        self,
        admission: Admission,
        workload: str = "batch",
        *,
        tokens: int = 0,
        name: str = "",
        flow: Flow = NO_FLOW,
        **report: Any,
    ) -> None:
        self.granted: asyncio.Event = asyncio.Event()
        self._end = asyncio.Event()
        self._report = {"ok": True, **report}
        self.task = asyncio.create_task(self._hold(admission.slot(workload, tokens=tokens, name=name, flow=flow)))

    async def _hold(self, slot: Slot) -> None:
        async with slot as lease:
            self.lease = lease
            lease.sent()
            self.granted.set()
            await self._end.wait()
            lease.report(**self._report)

    async def end(self, **report: Any) -> None:
        self._report |= report
        self._end.set()
        await self.task

    async def cancel(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def hold(admission: Admission, workload: str = "batch", *, tokens: int = 0, name: str = "") -> Holding:
    """A slot that is granted within ten seconds."""
    holding = Holding(admission, workload, tokens=tokens, name=name)
    async with asyncio.timeout(60):
        await holding.granted.wait()
    return holding
