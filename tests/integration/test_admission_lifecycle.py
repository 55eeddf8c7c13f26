"""An admission before its start, at its start and at its end; and the aiohttp connector under its leases."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import aiohttp
import pytest
import redis
from aiohttp import web

from brimful.errors import FleetError, RedisUnreachable
from brimful.names import Workload
from brimful.state.keys import TAGS, admission_keys
from brimful_worker.admission import Admission, Limits, StaleGrant, mark_clean
from brimful_worker.admission.aiohttp_connector import LeaseConnector
from brimful_worker.admission.errors import Retired
from brimful_worker.admission.lease import Lease, current_lease
from brimful_worker.liveness.watchdog import Watchdog
from brimful_worker.local.server.valkey import Valkey
from support.waiting import wait_until_async

TAG = "tag"
STATE = admission_keys(TAG)["state"]
LIMITS = Limits(slots=3, starts=None, lease_s=60.0)


@pytest.fixture(autouse=True)
def _clean(client: redis.Redis) -> None:
    client.flushall()
    mark_clean(client, TAG)


# before the start


async def test_before_its_start_it_has_nothing() -> None:
    admission = Admission("redis://127.0.0.1:1", TAG, LIMITS)
    assert (admission.held, admission.waiting, admission.commands, admission.round_trip_s) == (0, 0, 0, 0.0)
    assert (admission.slots, admission.stall_limit_s) == (3, 30.0)
    assert (admission.window, admission.failure) == (None, None)
    for call in (admission.slot, admission.start_only, lambda: admission.shared_queue(Workload.BATCH)):
        with pytest.raises(RuntimeError, match="not started"):
            call()
    await admission.aclose()


async def test_a_start_without_redis_leaves_nothing_running() -> None:
    admission = Admission("redis://127.0.0.1:1", TAG, LIMITS)
    with pytest.raises(RedisUnreachable):
        await admission.start(timeout_s=0.01)
    assert {task.get_name() for task in asyncio.all_tasks() if "brimful" in task.get_name()} == set()
    with pytest.raises(RuntimeError, match="not started"):
        admission.slot()


async def test_a_start_that_is_cancelled_is_none() -> None:
    admission = Admission("redis://127.0.0.1:1", TAG, LIMITS)
    starting = asyncio.create_task(admission.start(timeout_s=None))
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    with pytest.raises(RuntimeError, match="not started"):
        admission.slot()


# from the start to the end


@pytest.mark.parametrize(
    ("budget", "fleet", "expires"), [(None, None, True), (9, None, False), (None, "", False), (9, "", False)]
)
async def test_which_keys_expire(
    server: Valkey, client: redis.Redis, budget: int | None, fleet: str | None, expires: bool
) -> None:
    """Those of programs that have no budget: what was spent of a budget is not forgotten, nor anything of a fleet."""
    async with Admission(server.url, TAG, Limits(starts=None, budget=budget), fleet=fleet):
        assert client.zscore(TAGS, TAG) is not None
        assert (client.ttl(STATE) > 0) == expires
        client.persist(STATE)
    assert (client.ttl(STATE) > 0) == expires, "it says so again when it leaves"


async def test_a_pause_is_the_fleet_s(server: Valkey) -> None:
    async with Admission(server.url, TAG, LIMITS) as admission:
        await admission.pause(300, "as the provider asks")

        async def reason() -> str | None:
            return (await admission.status()).pause_reason

        await wait_until_async(reason, "it is known to all")
        assert await reason() == "as the provider asks"


async def test_what_a_program_sees_of_its_admission(server: Valkey) -> None:
    admission = Admission(server.url, TAG, LIMITS)
    await admission.start()
    try:
        async with admission.slot(), admission.slot("interactive"), admission.slot(Workload.BATCH):
            assert (admission.held, admission.slots, admission.failure) == (3, 3, None)
            assert admission.commands > 0
            assert 0 < admission.stall_limit_s <= 58.75 - 20, "until the next renewal is due"
            assert admission.window is not None
            waiting = asyncio.create_task(admission.slot().__aenter__())
            await wait_until_async(lambda: admission.waiting == 1, "the fourth waits")
            assert [demand.number for demand in admission.shared_queue(Workload.BATCH).demands().values()] == [1]
            assert admission.shared_queue(Workload.INTERACTIVE).demands() == {}
            assert (await admission.status()).slots_used == 3
            with pytest.raises(ValueError, match="other"):
                admission.slot("other")
            admission.retire()
            with pytest.raises(Retired):
                await waiting
            assert admission.held == 3, "those that are held stay"
    finally:
        await admission.aclose()
    assert (admission.held, admission.waiting) == (0, 0)
    assert {task.get_name() for task in asyncio.all_tasks() if "brimful" in task.get_name()} == set()


async def test_what_is_closed_may_be_closed_again_and_started_again(server: Valkey, client: redis.Redis) -> None:
    admission = Admission(server.url, TAG, LIMITS)
    for _ in range(2):
        await admission.start()
        assert client.zcard(admission_keys(TAG)["heard"]) == 1
        slot = admission.slot()
        await admission.aclose()
        await admission.aclose()
        assert client.zcard(admission_keys(TAG)["heard"]) == 0, "it has left"
        with pytest.raises(FleetError, match="closed"):
            await slot.__aenter__()


# requests of aiohttp


@pytest.fixture
def watchdog() -> Iterator[Watchdog]:
    watchdog = Watchdog()
    yield watchdog
    watchdog.stop()


@contextmanager
def under(watchdog: Watchdog, wire_deadline: float = math.inf) -> Iterator[Lease]:
    """A block with a lease, as of a slot."""
    lease = Lease("aa.b.000000001.0", 0.0, wire_deadline, 0.0, watchdog)
    token = current_lease.set(lease)
    try:
        yield lease
    finally:
        current_lease.reset(token)


@asynccontextmanager
async def echo() -> AsyncIterator[tuple[aiohttp.ClientSession, asyncio.Event]]:
    """A session with one connection at most, whose server answers with the connection's port; ``/slow`` sets the
    event, and answers at the end only."""
    arrived, ended = asyncio.Event(), asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        assert request.transport is not None
        port = request.transport.get_extra_info("peername")[1]
        if request.path == "/slow":
            arrived.set()
            await ended.wait()
        return web.Response(text=str(port))

    app = web.Application()
    app.router.add_get("/{any:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        base = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        timeout = aiohttp.ClientTimeout(total=60)
        async with aiohttp.ClientSession(base, connector=LeaseConnector(limit=1), timeout=timeout) as session:
            yield session, arrived
    finally:
        ended.set()
        await runner.cleanup()


async def get(session: aiohttp.ClientSession, path: str = "") -> str:
    async with session.get(path) as answer:
        return await answer.text()


async def test_a_request_uses_the_lease_of_its_block(watchdog: Watchdog) -> None:
    async with echo() as (session, _):
        port = await get(session)  # outside of a block it is any request
        with under(watchdog) as lease:
            assert await get(session) == port
            assert lease.sent_at > 0
            with pytest.raises(StaleGrant, match="used already"):
                await get(session)
            lease.shut_now()  # the connection serves others now
        with under(watchdog) as lease:
            lease.end()
            assert await get(session) == port, "the connection was neither kept nor shut"
            assert lease.sent_at == 0, "a lease that has ended is used by nothing"


async def test_a_request_whose_grant_came_too_late_is_not_sent(watchdog: Watchdog) -> None:
    async with echo() as (session, arrived):
        port = await get(session)
        with under(watchdog, wire_deadline=-math.inf) as lease:
            with pytest.raises(StaleGrant, match="too late"):
                await get(session, "slow")
            assert lease.given_back
        assert not arrived.is_set()
        assert await get(session) == port


async def test_the_connection_of_a_request_is_shut_with_its_lease(watchdog: Watchdog) -> None:
    async with echo() as (session, arrived):
        with under(watchdog) as lease:
            request = asyncio.create_task(get(session, "slow"))
            await asyncio.wait_for(arrived.wait(), 60)
            lease.shut_now()
            with pytest.raises((aiohttp.ClientError, StaleGrant)):  # the latter where aiohttp would send it again
                await request
        assert lease.lost
