"""Redis clients for the admission's own connections: from a URL, or with the settings of a client that it was lent."""

from __future__ import annotations

from typing import Any

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.sentinel import SentinelConnectionPool

from brimful.state.redis_url import close_redis_client, redis_client

_LENT = frozenset(
    (
        *("host", "port", "path", "db", "username", "password", "credential_provider"),
        *("socket_keepalive", "socket_keepalive_options", "socket_type", "redis_connect_func"),
    )
)
"""Settings of a lent client's connections that ours take over, beside those of TLS (``ssl_*``)."""


def open_client(source: str | Redis, **options: Any) -> Redis:
    """A client with connections of its own. ``options`` are redis-py's.

    ``source``: a URL, or a client whose address, login, TLS and Sentinels are used; it is neither changed nor closed.
    """
    if isinstance(source, str):
        return redis_client(source, **options)
    return Redis(connection_pool=_pool_like(source.connection_pool, options))


async def close_client(client: Redis, source: str | Redis) -> None:
    """Close a client of :func:`open_client`. The Sentinels of a lent client are its owner's."""
    if isinstance(source, str):
        await close_redis_client(client)
    else:
        await client.aclose()
        await client.connection_pool.disconnect()


def _pool_like(pool: ConnectionPool, options: dict[str, Any]) -> ConnectionPool:
    lent = {name: value for name, value in pool.connection_kwargs.items() if name in _LENT or name.startswith("ssl_")}
    kind: type[AbstractConnection] = pool.connection_class
    settings = {**lent, **options, "connection_class": kind}
    if isinstance(pool, SentinelConnectionPool):
        return SentinelConnectionPool(pool.service_name, pool.sentinel_manager, **settings)  # type: ignore[no-untyped-call]
    return ConnectionPool(**settings)
