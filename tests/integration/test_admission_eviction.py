"""A server whose ``maxmemory-policy`` lets it drop keys."""

from __future__ import annotations

import asyncio
import contextlib
import logging

import pytest
import redis

from brimful.state.status import read_status
from brimful_worker.admission import EvictingRedis
from brimful_worker.admission.wire.eviction import EvictionWatch
from brimful_worker.local.server.valkey import Valkey
from support.admissions import TAG, Holding, admissions, hold, marked_clean
from support.holder import Holder
from support.ledger import Ledger
from support.waiting import wait_until_async


@pytest.fixture
def client(valkey: Valkey) -> redis.Redis:
    return marked_clean(valkey)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks at every command."""
    monkeypatch.setattr(EvictionWatch, "every_s", 0.0)
    monkeypatch.setattr(EvictionWatch, "again_s", 0.0)


def evict(client: redis.Redis, policy: str = "allkeys-lru") -> None:
    client.config_set("maxmemory-policy", policy)
    client.config_set("maxmemory", "100mb")


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random", "volatile-ttl"])
async def test_nothing_starts_on_a_server_that_evicts(valkey: Valkey, client: redis.Redis, policy: str) -> None:
    evict(client, policy)
    with pytest.raises(EvictingRedis, match=rf"maxmemory-policy {policy}: .* drops .* `maxmemory-policy noeviction`"):
        async with admissions(valkey.url, 1):
            pass


@pytest.mark.usefixtures("often")
async def test_a_server_that_evicts_later_pauses_the_fleet(
    valkey: Valkey, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    async with admissions(valkey.url, 2, slots=4, lease_s=1.5, slow_start_s=0) as (one, two):
        held = await hold(one)
        evict(client)
        await wait_until_async(lambda: read_status(client, TAG).pause_s > 0, "the fleet is paused")
        assert "noeviction" in (read_status(client, TAG).pause_reason or "")
        waiting = Holding(two)
        renewed = held.lease.renewed
        await wait_until_async(lambda: held.lease.renewed > renewed + 2.5, "leases are renewed beyond a first pause")
        assert not waiting.granted.is_set()
        client.config_set("maxmemory-policy", "noeviction")
        await asyncio.wait_for(waiting.granted.wait(), 60)
        await waiting.end()
        await held.end()
    told = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(told) == 2, "each process once"
    assert "nothing starts until then" in told[0].getMessage()
    assert "evicts no keys any more" in caplog.text


@pytest.mark.parametrize("denied", [("-info", "+info|server"), ()])
async def test_a_policy_that_cannot_be_seen(
    valkey: Valkey, client: redis.Redis, caplog: pytest.LogCaptureFixture, denied: tuple[str, ...]
) -> None:
    client.acl_setuser("few", enabled=True, nopass=True, keys=["*"], channels=["*"], categories=["+@all"])
    if not denied:
        client.config_set("maxmemory-policy", "allkeys-lru")  # without a maxmemory: only worth a warning
    else:
        client.execute_command("ACL", "SETUSER", "few", *denied)
    async with admissions(valkey.url.replace("redis://", "redis://few:x@"), 1) as (one,):
        await (await hold(one)).end()
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    (warning,) = [text for text in warnings if "each start counts" not in text]  # on a busy machine
    assert ("cannot be checked" in warning) == bool(denied)
    assert ("once a maxmemory is set" in warning) == (not denied)


async def test_a_full_server_that_evicts_breaks_no_limit(valkey: Valkey, client: redis.Redis) -> None:
    """Real processes, before they look again: each key that is dropped is noticed."""
    limits = {"slots": 16, "starts": None, "lease_s": 2, "cooldown_s": 0.2, "circuit_breaker": 0}
    async with Ledger() as ledger:
        options = {"limits": limits, "coroutines": 16, "hold_s": 0.3, "spread": 0.4}
        holders = [Holder(valkey.url, ledger.port, name=f"h{i}", **options) for i in range(2)]
        try:
            await asyncio.gather(*[asyncio.to_thread(holder.ready) for holder in holders])
            await wait_until_async(lambda: ledger.active == 16, "all slots are in use")
            client.config_set("maxmemory-policy", "allkeys-random")
            for _ in range(20):
                client.mset({f"filler{number}": bytes(1000) for number in range(20)})
                evicted, known = client.info("stats")["evicted_keys"], len(ledger.visits)
                while client.info("stats")["evicted_keys"] == evicted:
                    client.config_set("maxmemory", client.info("memory")["used_memory"] - 6000)
                    with contextlib.suppress(redis.OutOfMemoryError):
                        client.set("filler", bytes(1000))  # makes room by dropping keys, some of them the admission's
                client.config_set("maxmemory", 0)
                await wait_until_async(lambda before=known: len(ledger.visits) >= before + 4, "grants go on")
        finally:
            for holder in holders:
                holder.close()
    assert ledger.most_active <= 16
