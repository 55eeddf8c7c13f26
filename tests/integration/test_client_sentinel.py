"""The client and the driver behind a Sentinel."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path

import pytest

from brimful import AsyncFleet
from brimful.state.redis_url import sync_redis_client
from brimful_worker.local.server.valkey import Valkey
from support.sentinel import sentinel
from support.stub_fleet import StubSampler, stub_fleet


async def test_no_connection_to_a_sentinel_is_left_open(valkey: Valkey, tmp_path: Path) -> None:
    """redis-py warns of a connection that is collected unclosed, and here a warning is an error."""
    with warnings.catch_warnings(action="ignore"):
        gc.collect()  # what other tests left
    with sentinel(tmp_path, valkey.port) as port:
        url = f"sentinel://127.0.0.1:{port}/0?master=mymaster"
        async with stub_fleet(valkey.url, StubSampler()), AsyncFleet(url) as fleet:
            assert [one.text async for one in fleet.map(["a"], max_tokens=8)] == ["a#0"]
            with pytest.raises(TimeoutError):
                await fleet.sample("b", max_tokens=8, timeout=0.2)
        del fleet
        gc.collect()


def test_a_blocking_client_closes_its_connections_to_the_sentinel(valkey: Valkey, tmp_path: Path) -> None:
    with sentinel(tmp_path, valkey.port) as port:
        with sync_redis_client(f"sentinel://127.0.0.1:{port}/0?master=mymaster") as client:
            assert client.ping()
        del client
        gc.collect()
