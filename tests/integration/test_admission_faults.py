"""Faults of processes, Redis and network, as a gateway without limits of its own sees them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from brimful.state.redis_url import sync_redis_client
from brimful.state.status import read_status
from brimful_worker.local.server.valkey import Valkey
from support.admissions import KEYS, TAG, marked_clean
from support.chaos import long_only, rounds
from support.holder import Holder
from support.ledger import Ledger
from support.proxy import Proxy
from support.waiting import wait_until_async

pytestmark = pytest.mark.chaos

SLOTS, STARTS, WINDOW_S, LEASE_S = 16, 50, 0.8, 1.6
LIMITS: dict[str, Any] = {
    "slots": SLOTS,
    "starts": STARTS,
    "window_s": WINDOW_S,
    "guard_s": 0.4,
    "lease_s": LEASE_S,
    "cooldown_s": 0.2,
    "circuit_breaker": 0,
    "slow_start_s": 0.2,
}
UNHURRIED = LIMITS | {"lease_s": 4.0, "cooldown_s": 1.0}
"""A request whose lease cannot be renewed is ended 1.25 s before the lease ends in Redis: a busy machine may be that
late."""


@pytest.fixture
async def ledger() -> AsyncIterator[Ledger]:
    async with Ledger() as ledger:
        yield ledger


@contextlib.contextmanager
def fleet(urls: list[str], ledger: Ledger, **options: Any) -> Iterator[list[Holder]]:
    """One process per URL, 12 coroutines each."""
    settings = {"limits": LIMITS, "coroutines": 12, "hold_s": 0.25, "spread": 0.4, **options}
    with contextlib.ExitStack() as stack:
        holders = []
        for number, url in enumerate(urls):
            holder = Holder(url, ledger.port, name=f"h{number}", **settings)
            stack.callback(holder.close)
            holders.append(holder)
        yield holders


async def ready(holders: list[Holder]) -> None:
    await asyncio.gather(*[asyncio.to_thread(holder.ready) for holder in holders])


async def full(ledger: Ledger) -> None:
    await wait_until_async(lambda: ledger.active == SLOTS, "all slots are in use")


def check(ledger: Ledger) -> None:
    assert ledger.most_active <= SLOTS
    assert ledger.most_in_window(WINDOW_S) <= STARTS


async def more(ledger: Ledger, visits: int, what: str) -> None:
    known = len(ledger.visits)
    await wait_until_async(lambda: len(ledger.visits) >= known + visits, what)


async def test_redis_goes_away_and_comes_back_with_its_memory(tmp_path: Path, ledger: Ledger) -> None:
    valkey = Valkey(tmp_path / "own", appendonly=True, options=("appendfsync always",))
    with valkey:
        marked_clean(valkey)
        with fleet([valkey.url] * 2, ledger) as holders:
            await ready(holders)
            await more(ledger, 40, "work flows")
            valkey.kill()
            await wait_until_async(lambda: ledger.active == 0, "what was in flight ends")
            started = len(ledger.visits)
            gone = time.monotonic()
            await wait_until_async(lambda: time.monotonic() - gone > 1, "a while without Redis")
            assert len(ledger.visits) == started
            valkey.start()
            await more(ledger, STARTS, "work flows again by itself")
        check(ledger)


@pytest.mark.parametrize("hold_s", [0.6, 0.05], ids=["slots", "window"])
async def test_memory_is_lost(valkey: Valkey, ledger: Ledger, hold_s: float) -> None:
    """Long requests: all slots are in use. Short ones: the window is full."""
    client = marked_clean(valkey)
    with fleet([valkey.url] * 2, ledger, hold_s=hold_s) as holders:
        await ready(holders)
        for loss in ["flush", "kill", *["script", "flush", "kill"] * rounds(0, 5)]:
            await more(ledger, 20, "work flows")
            if hold_s > 0.5:
                await full(ledger)
            epoch = client.hget(KEYS["state"], "epoch") if loss != "kill" else None
            if loss == "flush":
                client.flushall()
            elif loss == "kill":
                valkey.kill()
                valkey.start()
            else:
                client.script_flush()
            await more(ledger, STARTS, f"work flows after {loss}")
            if loss == "flush":
                assert client.hget(KEYS["state"], "epoch") != epoch
    check(ledger)


async def test_a_stale_replica_is_promoted(tmp_path: Path, ledger: Ledger) -> None:
    quick = ("repl-diskless-sync-delay 0",)
    with Valkey(tmp_path / "first", options=quick) as first, Valkey(tmp_path / "second") as second:
        marked_clean(first)
        replica = redis.Redis.from_url(second.url, decode_responses=True)
        async with Proxy(first.port) as proxy:
            with fleet([proxy.url] * 2, ledger, hold_s=0.6) as holders:
                await ready(holders)
                await full(ledger)
                replica.replicaof("127.0.0.1", first.port)
                await wait_until_async(
                    lambda: replica.info("replication")["master_link_status"] == "up", "the replica is in sync"
                )
                replica.replicaof("NO", "ONE")  # from here on it is stale
                await more(ledger, 20, "work goes on at the first")
                await full(ledger)
                proxy.target = second.port
                proxy.cut()
                await more(ledger, STARTS, "work flows at the second")
        check(ledger)


async def test_half_the_fleet_is_killed_again_and_again(valkey: Valkey, ledger: Ledger) -> None:
    marked_clean(valkey)
    limits = {**LIMITS, "starts": None}
    with fleet([valkey.url] * 2, ledger, limits=limits, coroutines=SLOTS, hold_s=0.3) as survivors:
        await ready(survivors)
        for _ in range(rounds(2, 10)):
            with fleet([valkey.url] * 2, ledger, limits=limits, coroutines=SLOTS, hold_s=0.3) as victims:
                await ready(victims)
                await wait_until_async(lambda: {v.process for v in ledger.visits[-SLOTS:]} >= {"h0", "h1"}, "all work")
                for victim in victims:
                    victim.kill()
                await full(ledger)
        await wait_until_async(lambda: read_status(sync_redis_client(valkey.url), TAG).slots_used == SLOTS, "whole")
    assert ledger.most_active <= SLOTS


async def test_half_the_fleet_is_stopped_and_continued(valkey: Valkey, ledger: Ledger) -> None:
    marked_clean(valkey)
    with fleet([valkey.url] * 2, ledger, coroutines=24) as holders:
        await ready(holders)
        await more(ledger, 30, "work flows")
        holders[0].freeze()
        frozen = time.monotonic()
        await wait_until_async(lambda: time.monotonic() - frozen > 1.5 * LEASE_S, "it is frozen beyond its leases")
        await more(ledger, 30, "the other works")
        holders[0].thaw()
        await wait_until_async(lambda: {v.process for v in ledger.visits[-40:]} == {"h0", "h1"}, "both work again")
    check(ledger)


async def test_a_blocked_loop_loses_its_connections_before_its_slots(valkey: Valkey, ledger: Ledger) -> None:
    client = marked_clean(valkey)
    options: dict[str, Any] = {"limits": UNHURRIED, "hold_s": 30, "spread": 0, "coroutines": 4}
    with fleet([valkey.url], ledger, block_s=6.0, **options) as holders:
        await ready(holders)
        await wait_until_async(lambda: client.zcard(KEYS["slots"]) == 4, "four slots are held")
        await wait_until_async(lambda: len(ledger.visits) == 4, "four requests are in flight")
        # the loop is stuck now; its connections must be shut while Redis still keeps the slots
        await wait_until_async(lambda: ledger.active == 0, "the watchdog has shut them")
        assert client.zcard(KEYS["slots"]) == 4
        assert not any(visit.answered for visit in ledger.visits)


async def test_a_lease_that_cannot_be_renewed_ends_its_request_in_time(valkey: Valkey, ledger: Ledger) -> None:
    marked_clean(valkey)
    async with Proxy(valkey.port) as proxy:
        options: dict[str, Any] = {"limits": UNHURRIED, "hold_s": 30, "spread": 0, "coroutines": 4}
        with fleet([proxy.url] * 2, ledger, **options) as holders:
            await ready(holders)
            await wait_until_async(lambda: ledger.active == 8, "eight requests are in flight")
            proxy.freeze()
            frozen = time.monotonic()
            await wait_until_async(lambda: ledger.active == 0, "they are ended")
            assert all(visit.ended and visit.ended - frozen <= UNHURRIED["lease_s"] for visit in ledger.visits)
            proxy.thaw()
            await wait_until_async(lambda: ledger.active == 8, "and begun again")
    check(ledger)


async def test_clocks_of_half_the_workers_are_off_by_an_hour(valkey: Valkey, ledger: Ledger) -> None:
    marked_clean(valkey)
    with fleet([valkey.url], ledger) as right, fleet([valkey.url], ledger, offset_s=3600) as wrong:
        await ready([*right, *wrong])
        await more(ledger, 60, "all work")
        lost = [holder.stats()["lost"] for holder in (*right, *wrong)]
        assert lost == [0, 0]
    check(ledger)


@long_only
async def test_a_network_that_cuts_and_drops_breaks_no_limit(valkey: Valkey, ledger: Ledger) -> None:
    marked_clean(valkey)
    async with Proxy(valkey.port) as proxy:
        with fleet([proxy.url] * 2, ledger) as holders:
            await ready(holders)
            for _ in range(rounds(3, 20)):
                proxy.drop_reply_to = b'"ask"'
                await more(ledger, 10, "work flows though a reply was swallowed")
                proxy.drop_request = b'"release"'
                await more(ledger, 10, "work flows though a command was swallowed")
                proxy.cut()
                await more(ledger, 10, "work flows though all was cut")
            assert proxy.dropped >= 4
    check(ledger)


@pytest.mark.parametrize("how", ["stopped", "asleep", "paused"][: rounds(1, 3)])
async def test_a_stall_of_redis_costs_its_own_time_only(tmp_path: Path, ledger: Ledger, how: str) -> None:
    """The time of the stall counts as passed: else the window's starts would be waited for a second time."""
    with Valkey(tmp_path / "own", options=("enable-debug-command yes",)) as valkey:
        client = marked_clean(valkey)
        with fleet([valkey.url] * 2, ledger, hold_s=0.05) as holders:
            await ready(holders)
            await more(ledger, STARTS, "work flows")
            skew = int(client.hget(KEYS["state"], "skew") or 0)
            stalled = time.monotonic()
            if how == "stopped":
                os.kill(valkey.pid, signal.SIGSTOP)
                await wait_until_async(lambda: time.monotonic() - stalled > 2 * LEASE_S, "it stands still")
                os.kill(valkey.pid, signal.SIGCONT)
            elif how == "paused":
                client.client_pause(round(2000 * LEASE_S))
            else:
                await asyncio.to_thread(client.execute_command, "DEBUG", "SLEEP", 2 * LEASE_S)
            await more(ledger, 2 * STARTS, "work flows again")
            assert time.monotonic() - stalled > 2 * LEASE_S
            assert int(client.hget(KEYS["state"], "skew") or 0) > skew - 1000 * LEASE_S
        check(ledger)


async def test_stopped_processes_with_many_waiters_idle_few_slots_and_slow_no_turn(
    valkey: Valkey, ledger: Ledger
) -> None:
    client = marked_clean(valkey)
    limits = {**LIMITS, "slots": 200, "starts": None, "lease_s": 6.0}
    waiting = 3 * 400  # as many as three processes register

    def turns() -> tuple[int, int]:
        stats: Any = client.info("commandstats")
        return stats["cmdstat_evalsha"]["calls"], stats["cmdstat_zrange"]["calls"]

    async def reads_a_step(visits: int) -> float:
        """Reads of the queues for each turn and each grant: on a busy machine, few turns grant much."""
        before = turns()
        await more(ledger, visits, "the others work")
        after = turns()
        return (after[1] - before[1]) / (after[0] - before[0] + visits)

    options: dict[str, Any] = {"limits": limits, "hold_s": 1.0}
    with fleet([valkey.url] * 2, ledger, coroutines=110, **options) as live:
        await ready(live)
        await wait_until_async(lambda: ledger.active == 200, "all slots are in use")
        with fleet([valkey.url] * 3, ledger, coroutines=400, **options) as others:
            await ready(others)
            await wait_until_async(lambda: client.zcard(KEYS["batch"]) >= 0.8 * waiting, "they wait")
            for other in others:
                other.freeze()
            await more(ledger, 100, "the others work")  # their own waiters came first
            reads = await reads_a_step(200)
            idle = sum(len(json.loads(grants)) for grants in client.hvals(KEYS["inbox"]))
            assert idle <= 3 * 16 + 2 * 16  # of the stopped ones, and what the live ones have yet to confirm
            assert reads <= 4  # 2.5; reading past those that wait takes 6 more a turn, 2.8 a step
            assert client.zcard(KEYS["batch"]) >= 0.5 * waiting
    assert ledger.most_active <= 200
