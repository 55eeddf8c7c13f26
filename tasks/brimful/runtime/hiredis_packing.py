"""Packs commands of redis-py's asyncio clients with hiredis.

redis-py parses replies with hiredis wherever that is installed, but its asyncio clients pack commands in Python: with
a hundred outcomes in a command that was a tenth of a worker loop's time per request, and a twentieth of a submitter's.

Private parts of redis 8.1.0:
    redis.connection.HiredisRespSerializer: pack
    redis.asyncio.connection.Connection: pack_command
    redis.asyncio.connection.ConnectionPool: connection_class
"""

from __future__ import annotations

from typing import Any

from redis.asyncio import Redis
from redis.connection import HiredisRespSerializer
from redis.utils import HIREDIS_AVAILABLE

if HIREDIS_AVAILABLE:
    import hiredis

_hiredis = HiredisRespSerializer()


def packed(client: Redis) -> Redis:
    """The same client; connections that it makes from now on pack in C, where hiredis is installed."""
    if not HIREDIS_AVAILABLE:
        return client
    pool = client.connection_pool
    kind: type[Any] = pool.connection_class
    pool.connection_class = type(kind.__name__, (kind,), {"pack_command": _pack_command})
    return client


def _pack_command(self: Any, *args: Any) -> Any:
    # redis-py's packing also takes names of two words and further types, with more steps for each command.
    if isinstance(args[0], str) and " " not in args[0]:
        try:
            return [hiredis.pack_command(args)]
        except TypeError:  # such as a bytearray, or what cannot be sent
            pass
    return _hiredis.pack(*args)
