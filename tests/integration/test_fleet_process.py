"""The end of a process that sends a fleet's requests, on a real Valkey."""

from __future__ import annotations

import asyncio

import pytest

from brimful.config import Settings
from brimful.state.redis_url import sync_redis_client
from brimful.state.status import Status
from brimful_worker import fleet_process
from brimful_worker.admission import Admission
from brimful_worker.fleet_process import FleetProcess
from brimful_worker.local.server.valkey import Valkey
from brimful_worker.metrics import catalogue as metrics
from support.waiting import wait_until_async


async def test_what_works_for_it_ends_before_its_clients_are_closed(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A client that is used after it was closed opens a connection that nobody closes."""
    asked, closed, late = 0, False, False
    close, status = Admission.aclose, Admission.status

    async def closing(admission: Admission) -> None:
        nonlocal closed
        await close(admission)
        closed = True
        for _ in range(100):
            await asyncio.sleep(0)

    async def counted(admission: Admission) -> Status:
        nonlocal asked, late
        asked += 1
        late = late or closed
        return await status(admission)

    monkeypatch.setattr(fleet_process, "STATUS_S", 0.0)
    monkeypatch.setattr(Admission, "aclose", closing)
    monkeypatch.setattr(Admission, "status", counted)
    monkeypatch.setenv("ACS_API_BASE", "http://127.0.0.1:1/v1")
    monkeypatch.setenv("ACS_API_KEY", "sk-left")
    metrics.serve(0, key_tag="k")
    request.addfinalizer(metrics.stop)
    process = FleetProcess(
        Settings.load(redis_url=valkey.url, guardian=False), "here", concurrency=1, stopping=lambda: False
    )
    with sync_redis_client(valkey.url) as redis:
        await process.start()
        await wait_until_async(lambda: asked > 1, "the fleet's status to be read for the metrics")
        await process.aclose()
        assert not late
        await wait_until_async(lambda: len(redis.client_list()) == 1, "all connections to be closed")
