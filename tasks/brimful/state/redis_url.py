"""``BRIMFUL_REDIS_URL`` in the forms that Celery and redis-py take, and clients for it.

``redis://``, ``rediss://``, ``unix:///path?db=0`` and ``sentinel://host:26379;sentinel://other:26379/0?master=mymaster``.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import redis
from redis.asyncio import Redis
from redis.asyncio.sentinel import Sentinel

from brimful.errors import SettingError

NOT_SET = "BRIMFUL_REDIS_URL is not set: it names the fleet's Redis (`brimful up` prints it)"
PRIORITY_STEPS = (0, 3, 6, 9)
"""Message priorities at which kombu begins another list of a queue; 0 is the most urgent."""


def required(url: str | None) -> str:
    """The URL. Raises SettingError if there is none: a default would be some other service's Redis."""
    if not url:
        raise SettingError(NOT_SET)
    return url


def broker_url(url: str | None) -> str:
    """The URL for Celery's broker and result backend. Raises SettingError if there is none."""
    url = required(url)
    if url.startswith("unix://"):
        parts = urlsplit(url)
        db = parse_qs(parts.query).get("db", ["0"])[0]
        auth = parts.netloc.rpartition("@")[0]
        return f"redis+socket://{auth + '@' if auth else ''}{parts.path}?virtual_host={db}"
    if url.startswith("sentinel://"):
        return url.partition("?")[0]
    return url


def broker_options(url: str | None, visibility_timeout_s: int) -> dict[str, Any]:
    """kombu's transport options. Publishers, workers and Flower must agree on steps and visibility timeout."""
    options: dict[str, Any] = {
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
    }
    if url and url.startswith("sentinel://"):
        options["master_name"] = _master_name(url)
    return options


def redis_client(url: str, **options: Any) -> Redis:
    """An asyncio client that answers with str and connects at its first command; ``options`` are redis-py's.

    Close it with :func:`close_redis_client`.
    """
    client: Redis = _client(Redis, Sentinel, url, options)
    return client


def sync_redis_client(url: str, **options: Any) -> redis.Redis:
    """As :func:`redis_client`, blocking."""
    client: redis.Redis = _client(redis.Redis, redis.Sentinel, url, options)
    return client


async def close_redis_client(client: Redis) -> None:
    """Close the client and its connections to the Sentinels, which redis-py's ``aclose`` leaves open."""
    manager = getattr(client.connection_pool, "sentinel_manager", None)
    await client.aclose()
    for sentinel in manager.sentinels if manager is not None else ():
        await sentinel.aclose()


def without_password(url: str) -> str:
    """The URL without user and password, for messages."""
    places = []
    for place in url.split(";"):
        scheme, slashes, rest = place.rpartition("//")
        places.append(f"{scheme}{slashes}{rest.rpartition('@')[2]}")
    return re.sub(r"(password=)[^&]*", r"\1***", ";".join(places))


_CLIENT: dict[str, Any] = {
    "decode_responses": True,
    "socket_timeout": 10,
    "socket_connect_timeout": 5,
    "socket_keepalive": True,
    "health_check_interval": 15,
}


def _client(client_class: Any, sentinel_class: Any, url: str, options: dict[str, Any]) -> Any:
    settings = {**_CLIENT, **options}
    if url.startswith("unix://"):
        del settings["socket_keepalive"]  # redis-py's unix connections do not take it
    if not url.startswith("sentinel://"):
        return client_class.from_url(url, **settings)
    places = [urlsplit(place if "//" in place else f"//{place}") for place in url.partition("?")[0].split(";")]
    if password := next((place.password for place in places if place.password), None):
        settings["password"] = password
    sentinel = sentinel_class(
        [(place.hostname or "127.0.0.1", place.port or 26379) for place in places], socket_timeout=5
    )
    return sentinel.master_for(_master_name(url), db=int(places[-1].path.strip("/") or 0), **settings)


def _master_name(url: str) -> str:
    return parse_qs(urlsplit(url).query).get("master", ["mymaster"])[0]
