"""redis-py's asyncio clients with commands packed by hiredis, as its blocking ones pack them.

Where hiredis is installed redis-py has it parse every answer, but its asyncio clients still pack in Python: with a
hundred outcomes in a command that took a tenth of what a worker's loop does for a request.
"""

from __future__ import annotations

from typing import Any

from redis.asyncio import Redis
from redis.connection import HiredisRespSerializer

_hiredis = HiredisRespSerializer()


def packed(client: Redis) -> Redis:
    """The same client; all connections that it makes from now on pack in C."""
    pool = client.connection_pool
    pool.connection_class = _packing(pool.connection_class)
    return client


def _packing(connection: type[Any]) -> type[Any]:
    def pack_command(self: Any, *args: Any) -> Any:
        return _hiredis.pack(*args)

    return type(connection.__name__, (connection,), {"pack_command": pack_command})
