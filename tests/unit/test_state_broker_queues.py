"""Shards are found among whatever else lies in the queues."""

from __future__ import annotations

import json

import pytest

from brimful.names import TASK_SHARD, Workload
from brimful.state.broker_queues import UNACKED, find_shards, parse_message
from brimful.state.redis_url import close_redis_client, redis_client
from brimful_worker.local.server.valkey import Valkey
from support.messages import item

JUNK = [b"\xff\xfe", b"", b"hello", b"5", b"[]", b"{}", b"[" * 100_000, json.dumps({"headers": None}).encode()]
JUNK += [json.dumps(item("x", task=TASK_SHARD) | changes).encode() for changes in ({"properties": [1]}, {"body": "%"})]


def shard(name: str) -> dict[str, object]:
    return item(name, task=TASK_SHARD, call=(["run", name, [{"id": "r"}]], {}, {}), queue="batch")


async def test_a_shard_is_found_among_junk(valkey: Valkey) -> None:
    client = redis_client(valkey.url)
    try:
        queue = Workload.BATCH.value
        await client.rpush(queue, *JUNK, json.dumps(shard("queued")), *JUNK)
        for number, raw in enumerate(JUNK):
            await client.hset(UNACKED, f"tag{number}", raw)
        await client.hset(UNACKED, "tag", json.dumps([shard("delivered"), "", queue]))
        found = await find_shards(client, ["queued", "delivered", "lost"])
    finally:
        await close_redis_client(client)
    assert found == {"queued": [{"id": "r"}], "delivered": [{"id": "r"}]}


@pytest.mark.parametrize("raw", JUNK)
def test_junk_is_no_shard(raw: bytes) -> None:
    assert parse_message(raw) is None
