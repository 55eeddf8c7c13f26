"""A Redis URL in the forms that Celery and redis-py take, and clients for it.

:mod:`brimful.addresses.redis_address` parses it; neither library sees the URL as it was written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import redis
from redis.asyncio import Redis
from redis.asyncio.sentinel import Sentinel
from redis.sentinel import SentinelConnectionPool

from brimful.addresses import FleetAddress
from brimful.addresses.redis_address import SCHEMES, RedisAddress, parse_redis_url
from brimful.errors import SettingError
from brimful.names import of_fleet
from brimful.state.rabbitmq.celery_settings import rabbitmq_settings

if TYPE_CHECKING:  # pydantic is slow to import
    from brimful.config import Settings

NOT_SET = "BRIMFUL_REDIS_URL is not set: it names the fleet's Redis (`brimful up` prints it)"
PRIORITY_STEPS = (0, 3, 6, 9)
"""Message priorities at which kombu begins another list of a queue; 0 is the most urgent."""


def required(url: str | None) -> str:
    """The URL. Raises SettingError if there is none: a default would be some other service's Redis."""
    if not url:
        raise SettingError(NOT_SET)
    return url


def address_of(settings: Settings) -> FleetAddress:
    """Where the settings' fleet is. Raises SettingError if no Redis is named."""
    return FleetAddress(required(settings.redis_url), settings.fleet, settings.broker_url)


def celery_settings(address: FleetAddress, visibility_timeout_s: int) -> dict[str, Any]:
    """Celery's settings of broker, remote control, events and result backend: with a fleet's name, none that another
    fleet on the same Redis has. Raises SettingError for an invalid URL."""
    url, fleet, rabbitmq_url = address.redis_url, address.fleet, address.rabbitmq_url
    server = parse_redis_url(url)
    options = broker_options(visibility_timeout_s, fleet)
    if server.scheme == "sentinel":
        options["master_name"] = server.master
        options["sentinel_kwargs"] = _sentinel_options(server)
    tls = None if server.tls is None else dict(server.tls)
    return {
        "broker_url": broker_url(url),
        "result_backend": broker_url(url),
        "broker_use_ssl": tls,
        "redis_backend_use_ssl": tls,
        "broker_transport_options": options,
        **(rabbitmq_settings(rabbitmq_url) if rabbitmq_url else {}),
        "result_backend_transport_options": {**options, "global_keyprefix": of_fleet(fleet, "")},
        "control_exchange": of_fleet(fleet, "celery"),
        "event_exchange": of_fleet(fleet, "celeryev"),
    }


def broker_url(url: str | None) -> str:
    """The URL in Celery's form, without TLS parameters. Raises SettingError if there is none, or it is invalid."""
    address = parse_redis_url(required(url))
    if address.scheme == "unix":
        return f"redis+socket://{address.login}{quote(address.path)}?virtual_host={address.db}"
    return ";".join(f"{address.scheme}://{address.login}{host}/{address.db}" for host in address.hosts)


def broker_options(visibility_timeout_s: int, fleet: str = "") -> dict[str, Any]:
    """kombu's transport options. Publishers, workers and Flower must agree on steps and visibility timeout."""
    return {
        "visibility_timeout": visibility_timeout_s,
        "unacked_restore_interval": max(1, visibility_timeout_s // 3),
        "unacked_restore_throttle": 1,
        "unacked_mutex_expire": max(2, visibility_timeout_s // 2),
        "priority_steps": list(PRIORITY_STEPS),
        "queue_order_strategy": "priority",
        "health_check_interval": 5,
        "socket_timeout": 10,
        "socket_connect_timeout": 5,
        "socket_keepalive": True,
        **{f"{name}_key": of_fleet(fleet, name) for name in ("unacked", "unacked_index", "unacked_mutex")},
    }


def redis_client(url: str, **options: Any) -> Redis:
    """An asyncio client that answers with str and connects at its first command; ``options`` are redis-py's.

    Close it with :func:`close_redis_client`. Raises SettingError for an invalid URL.
    """
    client: Redis = _client(Redis, Sentinel, url, options)
    return client


def sync_redis_client(url: str, **options: Any) -> redis.Redis:
    """As :func:`redis_client`, blocking."""
    client: redis.Redis = _client(redis.Redis, redis.Sentinel, url, options, connection_pool_class=_SentinelPool)
    return client


async def close_redis_client(client: Redis) -> None:
    """Close the client and its connections to the Sentinels, which redis-py's ``aclose`` leaves open."""
    manager = getattr(client.connection_pool, "sentinel_manager", None)
    await client.aclose()
    for sentinel in manager.sentinels if manager is not None else ():
        await sentinel.aclose()


def close_sentinels(pool: redis.ConnectionPool) -> None:
    """Close a blocking pool's connections to the Sentinels, which redis-py leaves to the garbage collector."""
    manager = getattr(pool, "sentinel_manager", None)
    for sentinel in manager.sentinels if manager is not None else ():
        sentinel.connection_pool.disconnect()


def without_password(url: str) -> str:
    """The URL without user, password and TLS parameters, for messages."""
    try:
        return parse_redis_url(url).shown
    except SettingError:
        scheme, separator, _ = url.partition("://")
        return f"{scheme}://…" if separator and scheme in SCHEMES else "…"


_CLIENT: dict[str, Any] = {
    "decode_responses": True,
    "socket_timeout": 10,
    "socket_connect_timeout": 5,
    "socket_keepalive": True,
    "health_check_interval": 15,
}


class _SentinelPool(SentinelConnectionPool):
    """redis-py's pool of connections to a master, whose connections to the Sentinels are closed with them."""

    def disconnect(self, inuse_connections: bool = True) -> None:
        super().disconnect(inuse_connections)
        close_sentinels(self)


def _client(client_class: Any, sentinel_class: Any, url: str, options: dict[str, Any], **of_sentinel: Any) -> Any:
    address = parse_redis_url(url)
    login = {"username": address.username, "password": address.password}
    settings = {**_CLIENT, **options, **{name: value for name, value in login.items() if value is not None}}
    settings["db"] = address.db
    if address.scheme == "unix":
        del settings["socket_keepalive"]  # redis-py's unix connections do not take it
        return client_class.from_url(f"unix://{quote(address.path)}", **settings)
    settings |= address.tls or {}
    if address.scheme != "sentinel":
        return client_class.from_url(f"{address.scheme}://{address.hosts[0]}", **settings)
    sentinel = sentinel_class(list(address.places), sentinel_kwargs=_sentinel_options(address))
    return sentinel.master_for(address.master, ssl=address.tls is not None, **of_sentinel, **settings)


def _sentinel_options(address: RedisAddress) -> dict[str, Any]:
    """redis-py's options of a client of one Sentinel."""
    options = {"socket_timeout": 5, "socket_connect_timeout": 5, **address.sentinel_login}
    return options if address.tls is None else {**options, "ssl": True, **address.tls}
