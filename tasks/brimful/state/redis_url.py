"""One ``BRIMFUL_REDIS_URL``, as Celery wants it and as redis-py wants it.

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


def required(url: str | None) -> str:
    """The URL. Raises SettingError where there is none: a Redis that nobody named is never guessed."""
    if not url:
        raise SettingError(NOT_SET)
    return url


def broker_url(url: str | None) -> str:
    """The URL for Celery's broker and result backend. Raises SettingError where there is none."""
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
    """Transport options; publishers, workers and Flower must use the same ones: steps and visibility must agree."""
    options: dict[str, Any] = {
        "visibility_timeout": visibility_timeout_s,
        "unacked_restore_interval": max(1, visibility_timeout_s // 3),
        "unacked_restore_throttle": 1,
        "unacked_mutex_expire": max(2, visibility_timeout_s // 2),
        "priority_steps": [0, 3, 6, 9],
        "queue_order_strategy": "priority",
        "health_check_interval": 5,
        "socket_timeout": 10,
        "socket_connect_timeout": 5,
        "socket_keepalive": True,
    }
    if url and url.startswith("sentinel://"):
        options["master_name"] = parse_qs(urlsplit(url).query).get("master", ["mymaster"])[0]
    return options


def redis_client(url: str, **options: Any) -> Redis:
    """An asyncio client for the URL; answers are str. Connects when first used."""
    settings = _settings(url, options)
    if not url.startswith("sentinel://"):
        return Redis.from_url(url, **settings)
    hosts, more, master = _sentinel(url)
    sentinel = Sentinel(hosts, socket_timeout=5)  # type: ignore[no-untyped-call]
    client: Redis = sentinel.master_for(master, Redis, **more, **settings)
    return client


async def close_redis_client(client: Redis) -> None:
    """Closes the client, and with it the connections to the Sentinels that redis-py would leave open."""
    manager = getattr(client.connection_pool, "sentinel_manager", None)
    await client.aclose()
    for sentinel in manager.sentinels if manager is not None else ():
        await sentinel.aclose()


def sync_redis_client(url: str, **options: Any) -> redis.Redis:
    """As :func:`redis_client`, for code that runs on no loop."""
    settings = _settings(url, options)
    if not url.startswith("sentinel://"):
        return redis.Redis.from_url(url, **settings)
    hosts, more, master = _sentinel(url)
    sentinel = redis.Sentinel(hosts, socket_timeout=5)  # type: ignore[no-untyped-call]
    client: redis.Redis = sentinel.master_for(master, **more, **settings)  # type: ignore[no-untyped-call]
    return client


def _settings(url: str, options: dict[str, Any]) -> dict[str, Any]:
    settings = {**_CLIENT, **options}
    if url.startswith("unix://"):
        del settings["socket_keepalive"]  # redis-py's unix connections do not take it
    return settings


def without_password(url: str) -> str:
    """The URL as it may be shown: no user, no password."""
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


def _sentinel(url: str) -> tuple[list[tuple[str, int]], dict[str, Any], str]:
    """Hosts and ports, the client's database and password, the primary's name."""
    places = [urlsplit(place if "//" in place else f"//{place}") for place in url.partition("?")[0].split(";")]
    hosts = [(place.hostname or "127.0.0.1", place.port or 26379) for place in places]
    password = next((place.password for place in places if place.password), None)
    master = parse_qs(urlsplit(url).query).get("master", ["mymaster"])[0]
    more = {"db": int(places[-1].path.strip("/") or 0), **({"password": password} if password else {})}
    return hosts, more, master
