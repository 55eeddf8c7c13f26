"""Commands packed in C are the same commands."""

from __future__ import annotations

import pytest
from redis import DataError
from redis.asyncio.connection import Connection

from brimful.runtime.hiredis_packing import packed
from brimful.state.redis_url import redis_client


def test_what_cannot_be_sent_is_refused_as_by_redis_py() -> None:
    connection = packed(redis_client("redis://127.0.0.1:1/0")).connection_pool.connection_class()
    with pytest.raises(DataError):
        connection.pack_command("SET", "k", None)


def test_the_bytes_are_those_that_redis_py_makes() -> None:
    client = packed(redis_client("redis://127.0.0.1:1/0"))
    connection = client.connection_pool.connection_class()
    assert isinstance(connection, Connection)
    for command in (
        ("EVALSHA", "abc", 2, "k1", "k2", b"\xff\x00raw", "später", 3, 1.5),
        ("CONFIG GET", "maxmemory"),
        ("SET", "k", b"x" * 100_000),
        ("SET", "k", bytearray(b"x")),
        (b"CLIENT TRACKING", "ON"),
    ):
        assert b"".join(connection.pack_command(*command)) == b"".join(Connection.pack_command(connection, *command))
