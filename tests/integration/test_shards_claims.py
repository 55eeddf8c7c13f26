"""Claims on shards: which delivery has one, whatever the other deliveries do meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.asyncio import Redis

from brimful.dispatch.ledger import Keys
from brimful.state.redis_url import redis_client
from brimful_worker.admission.wire.connection import Connection
from brimful_worker.local.server.valkey import Valkey
from brimful_worker.shards.claims import Claim, Claims

KEYS = Keys("run")


def claims_of(client: Redis, valkey: Valkey) -> Claims:
    return Claims(client, Connection(valkey.url, "claims"), asyncio.Event(), 60.0)


@pytest.mark.parametrize(("given_back", "tries"), [(True, "2"), (False, "3")])
async def test_a_claim_that_is_given_up_is_free(valkey: Valkey, given_back: bool, tries: str) -> None:
    async with redis_client(valkey.url) as client:
        await client.set(KEYS.claim("shard"), "mine")
        await client.set(KEYS.tries("shard"), 3)
        await claims_of(client, valkey).give_up(Claim("run", "shard", KEYS, "mine"), given_back=given_back)
        assert await client.mget(KEYS.claim("shard"), KEYS.tries("shard")) == [None, tries]


async def test_a_claim_that_another_delivery_takes_meanwhile_stays_its_own(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with redis_client(valkey.url) as client, redis_client(valkey.url) as others:
        await client.set(KEYS.claim("shard"), "mine")
        await client.set(KEYS.tries("shard"), 3)
        execute = client.execute_command

        async def then_expired(*arguments: Any, **options: Any) -> Any:
            try:
                return await execute(*arguments, **options)
            finally:  # the claim expires after the first command, and another delivery takes it
                await others.set(KEYS.claim("shard"), "another's")

        monkeypatch.setattr(client, "execute_command", then_expired)
        await claims_of(client, valkey).give_up(Claim("run", "shard", KEYS, "mine"), given_back=False)
        assert await others.get(KEYS.claim("shard")) == "another's"
