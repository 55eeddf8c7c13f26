"""The limiter's adapters: they mark when a request is sent, and watch its connection."""

from __future__ import annotations

import asyncio
import contextlib

import aiohttp
import httpx2
import pytest
import redis

from brimful_worker.admission import Lease, LeaseLost, StaleGrant, mark_clean
from brimful_worker.limiter import Limiter, SyncLimiter, Window
from brimful_worker.limiter.aiohttp_adapter import LeaseConnector
from brimful_worker.limiter.httpx_adapter import mark_wire
from brimful_worker.local.server.valkey import Valkey
from support.gateways import running_gateway
from support.waiting import wait_until_async

NAME = "service"
BODY = {"model": "llama-8b", "prompt": "p", "max_tokens": 1}
HEADERS = {"Authorization": "Bearer any"}


def marked(valkey: Valkey, *tags: str) -> str:
    with redis.Redis.from_url(valkey.url) as client:
        for tag in (NAME, *tags):
            mark_clean(client, tag)
    return valkey.url


async def test_httpx_takes_one_grant_a_request(valkey: Valkey) -> None:
    windows = [Window(90, 2), Window(100, 60)]
    limiter = Limiter(marked(valkey, f"{NAME}:2s"), NAME, slots=3, windows=windows)
    events: list[str] = []

    async def trace(event: str, info: object) -> None:
        events.append(event)

    async with (
        contextlib.aclosing(limiter),
        running_gateway(slots=10, starts=1000) as gateway,
        httpx2.AsyncClient(
            base_url=gateway.url, headers=HEADERS, transport=mark_wire(httpx2.AsyncHTTPTransport())
        ) as client,
    ):
        for place in range(3):
            async with limiter as lease:
                answer = await client.post("/completions", json=BODY, extensions={"trace": trace})
                assert answer.json()["choices"]
                if place == 0:
                    lease.shut_now()
        assert gateway.request_log.connections == 1, "an answered request's connection serves others"
        async with limiter:
            await client.post("/completions", json=BODY)
            with pytest.raises(StaleGrant, match="used already"):
                await client.post("/completions", json=BODY)
        assert (await client.post("/completions", json=BODY)).status_code == 200  # outside of a slot it is any request
        assert gateway.request_log.total == 5
        assert "http11.send_request_headers.started" in events


def test_httpx_in_a_thread(valkey: Valkey) -> None:
    limiter = SyncLimiter(marked(valkey), NAME, slots=3)

    async def ask() -> int:
        async with running_gateway(slots=10, starts=1000) as gateway:
            await asyncio.to_thread(requests, gateway.url)
            return gateway.request_log.total

    def requests(url: str) -> None:
        transport = mark_wire(httpx2.HTTPTransport())
        with httpx2.Client(base_url=url, headers=HEADERS, transport=transport) as client:
            for _ in range(2):
                with limiter as lease:
                    assert client.post("/completions", json=BODY).json()["choices"]
                    assert lease.sent_at
                    with pytest.raises(StaleGrant, match="used already"):
                        client.post("/completions", json=BODY)

    try:
        assert asyncio.run(ask()) == 2
    finally:
        limiter.close()


@pytest.mark.parametrize("adapter", ["httpx", "aiohttp"])
async def test_a_grant_that_comes_too_late_is_not_used(valkey: Valkey, adapter: str) -> None:
    limiter = Limiter(marked(valkey), NAME, slots=3, starts=5)

    async def with_httpx(url: str) -> None:
        transport = mark_wire(httpx2.AsyncHTTPTransport())
        async with httpx2.AsyncClient(headers=HEADERS, transport=transport) as client:
            await client.post(f"{url}/completions", json=BODY)

    async def with_aiohttp(url: str) -> None:
        async with aiohttp.ClientSession(connector=LeaseConnector(), headers=HEADERS) as session:
            await session.post(f"{url}/completions", json=BODY)

    async with contextlib.aclosing(limiter), running_gateway(slots=10, starts=1000) as gateway:
        async with limiter as lease:
            lease.wire_deadline = 0.0
            with pytest.raises(StaleGrant, match="too late"):
                await (with_httpx if adapter == "httpx" else with_aiohttp)(gateway.url)
            assert lease.given_back
        assert gateway.request_log.total == 0
        with redis.Redis.from_url(valkey.url) as plain:
            await wait_until_async(lambda: plain.zcard(f"brimful:{{{NAME}}}:starts") == 0, "the start is given back")


@pytest.mark.parametrize("lost", ["redis is away", "shut"])
async def test_a_lost_slot_ends_its_request(valkey: Valkey, lost: str) -> None:
    limiter = Limiter(marked(valkey), NAME, slots=3, lease_s=2.0, cooldown_s=0.1)
    async with (
        contextlib.aclosing(limiter),
        running_gateway(slots=10, starts=1000, latency_s=60.0) as gateway,
        httpx2.AsyncClient(headers=HEADERS, transport=mark_wire(httpx2.AsyncHTTPTransport()), timeout=90) as client,
    ):

        async def ask() -> None:
            async with limiter as lease:
                leases.append(lease)
                await client.post(f"{gateway.url}/completions", json=BODY)

        leases: list[Lease] = []
        asking = asyncio.create_task(ask())
        await wait_until_async(lambda: gateway.slots.active == 1, "the request is at the gateway")
        if lost == "shut":
            leases[0].shut_now()  # as the watchdog does where the event loop cannot
        else:
            valkey.stop()
        with pytest.raises(LeaseLost):
            await asking
        await wait_until_async(lambda: gateway.slots.active == 0, "its connection is closed")


@pytest.mark.parametrize("end", ["redis is away", "close"])
async def test_a_lost_slot_ends_the_request_of_a_thread(valkey: Valkey, end: str) -> None:
    limiter = SyncLimiter(marked(valkey), NAME, slots=3, lease_s=2.0, cooldown_s=0.1)
    async with running_gateway(slots=10, starts=1000, latency_s=60.0) as gateway:

        def ask() -> None:
            with (
                httpx2.Client(headers=HEADERS, transport=mark_wire(httpx2.HTTPTransport()), timeout=90) as client,
                limiter,
            ):
                with pytest.raises(httpx2.TransportError):
                    client.post(f"{gateway.url}/completions", json=BODY)
                client.post(f"{gateway.url}/completions", json=BODY)  # it goes on, but sends nothing

        asking = asyncio.create_task(asyncio.to_thread(ask))
        try:
            await wait_until_async(lambda: gateway.slots.active == 1, "the request is at the gateway")
            if end == "close":
                await asyncio.to_thread(limiter.close)
            else:
                valkey.stop()
            await wait_until_async(lambda: gateway.slots.active == 0, "its connection is closed")
            with pytest.raises(LeaseLost):
                await asking
            assert gateway.request_log.total == 1
        finally:
            await asyncio.to_thread(limiter.close)
