"""One ``BRIMFUL_REDIS_URL``, as Celery wants it and as redis-py wants it.

``redis://``, ``rediss://``, ``unix:///path?db=0`` and ``sentinel://host:26379;sentinel://other:26379/0?master=mymaster``.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlsplit

from redis.asyncio import Redis
from redis.asyncio.sentinel import Sentinel

DEFAULT_URL = "redis://127.0.0.1:6379/0"
"""Only for plain Celery commands; ``brimful run`` and ``up`` bring a server of their own where no URL is set."""


def broker_url(url: str | None) -> str:
    """The URL for Celery's broker and result backend."""
    url = url or DEFAULT_URL
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
    settings: dict[str, Any] = {
        "decode_responses": True,
        "socket_timeout": 10,
        "socket_connect_timeout": 5,
        "socket_keepalive": True,
        "health_check_interval": 15,
        **options,
    }
    if not url.startswith("sentinel://"):
        return Redis.from_url(url, **settings)
    places = [urlsplit(place if "//" in place else f"//{place}") for place in url.partition("?")[0].split(";")]
    if password := next((place.password for place in places if place.password), None):
        settings["password"] = password
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        [(place.hostname or "127.0.0.1", place.port or 26379) for place in places], socket_timeout=5
    )
    master = parse_qs(urlsplit(url).query).get("master", ["mymaster"])[0]
    client: Redis = sentinel.master_for(master, Redis, db=int(places[-1].path.strip("/") or 0), **settings)
    return client
