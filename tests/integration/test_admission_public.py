"""The admission without the Celery worker: programs that block their loop, share a slot object, or are stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest

from brimful_worker.admission import StaleGrant
from brimful_worker.admission.aiohttp_connector import LeaseConnector
from brimful_worker.local.server.valkey import Valkey
from support.admissions import KEYS, admissions, marked_clean
from support.gateways import GatewayProcess, gateway_process, running_gateway
from support.holder import Holder
from support.ledger import Ledger
from support.waiting import wait_until, wait_until_async

EXAMPLES = Path(__file__).parents[2] / "examples"
EXAMPLE = """
import asyncio, sys, time
sys.path.insert(0, sys.argv[1])
import limits_only
from brimful_worker.admission import Limits

limits_only.Limits = lambda **limits: Limits(slots=6, starts=None, lease_s=2.0, cooldown_s=0.2)

async def main():
    main = asyncio.create_task(limits_only.main())
    if (blocked_s := float(sys.argv[2])):
        await asyncio.to_thread(sys.stdin.readline)
        time.sleep(blocked_s)
    await main

asyncio.run(main())
"""


@contextmanager
def example(url: str, gateway: GatewayProcess, blocked_s: float = 0.0) -> Iterator[subprocess.Popen[str]]:
    """examples/limits_only.py with six slots for its six prompts. A line on stdin blocks its event loop."""
    environment = {"BRIMFUL_REDIS_URL": url, "ACS_API_BASE": gateway.url, "ACS_API_KEY": "any"}
    process = subprocess.Popen(
        [sys.executable, "-c", EXAMPLE, str(EXAMPLES), str(blocked_s)],
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.chaos
def test_a_program_that_blocks_its_loop_loses_its_connections_before_its_slots(valkey: Valkey) -> None:
    flags = ("--latency", "30", "--per-token", "0", "--slots", "100", "--starts", "10000")
    with gateway_process(*flags) as gateway, example(valkey.url, gateway, blocked_s=60) as blocked:
        wait_until(lambda: gateway.ledger()["active"] == 6, "its six requests are in flight")
        assert blocked.stdin is not None
        blocked.stdin.write("\n")
        blocked.stdin.flush()
        with example(valkey.url, gateway):
            wait_until(lambda: gateway.ledger()["arrivals"] == 12, "the other's requests are in flight")
        assert gateway.ledger()["peak_active"] == 6


async def test_one_slot_object_gives_each_of_its_tasks_a_lease(valkey: Valkey) -> None:
    client = marked_clean(valkey)
    async with admissions(valkey.url, 1, slots=3, starts=None, lease_s=1.0, cooldown_s=0) as (one,):
        slot = one.slot()
        tickets, most = set(), 0

        async def use() -> None:
            nonlocal most
            async with slot as lease:
                tickets.add(lease.id)
                most = max(most, one.held)
                await asyncio.sleep(0.02)
                lease.report(ok=True)

        await asyncio.gather(*[use() for _ in range(12)])
        assert (len(tickets), most, one.held) == (12, 3, 0)
        await wait_until_async(lambda: client.zcard(KEYS["slots"]) == 0, "all slots are free")
        async with slot as outer, slot as inner:  # in one task, the last one entered is left first
            assert outer.id != inner.id
        assert (outer.ended, inner.ended, one.held) == (True, True, 0)


async def test_a_slot_left_by_another_task(valkey: Valkey) -> None:
    marked_clean(valkey)
    async with admissions(valkey.url, 1, slots=3, starts=None) as (one,):
        slot = one.slot()
        await asyncio.create_task(slot.__aenter__())
        await slot.__aexit__(None, None, None)
        assert one.held == 0
        for _ in range(2):
            await asyncio.create_task(slot.__aenter__())
        with pytest.raises(RuntimeError, match="not one of them"):
            await slot.__aexit__(None, None, None)
        assert one.held == 2


async def test_an_aiohttp_request_takes_one_grant(valkey: Valkey) -> None:
    marked_clean(valkey)
    async with (
        running_gateway(slots=10, starts=1000) as gateway,
        admissions(valkey.url, 1, slots=3, starts=100) as (one,),
        aiohttp.ClientSession(
            gateway.url + "/", connector=LeaseConnector(), headers={"Authorization": "Bearer any"}
        ) as session,
    ):
        body = {"model": "llama-8b", "prompt": "p", "max_tokens": 1}
        for _ in range(3):  # over one connection
            async with one.slot() as lease:
                async with session.post("completions", json=body) as answer:
                    assert (await answer.json())["choices"]
                with pytest.raises(StaleGrant, match="used already"):
                    await session.post("completions", json=body)
                lease.report(ok=True)
        async with session.post("completions", json=body) as answer:  # outside of a slot it is any request
            assert answer.status == 200
        assert gateway.request_log.total == 4


@pytest.mark.chaos
async def test_the_guardian_kills_a_stopped_program_if_it_may(valkey: Valkey) -> None:
    client = marked_clean(valkey)
    limits = {"slots": 4, "starts": None, "lease_s": 4.0, "cooldown_s": 0.2}
    async with Ledger() as ledger:
        guarded = Holder(valkey.url, ledger.port, limits=limits, coroutines=4, hold_s=60, guardian=True)
        try:
            await asyncio.to_thread(guarded.ready)
            await wait_until_async(lambda: ledger.active == 4, "its requests are in flight")
            guarded.freeze()
            await wait_until_async(lambda: ledger.active == 0, "its connections are closed")
            assert client.zcard(KEYS["slots"]) == 4
            assert guarded.process.wait(60) == -signal.SIGKILL
        finally:
            guarded.close()
