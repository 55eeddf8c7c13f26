"""Limiters of one name on one server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import redis

from brimful_worker.admission import mark_clean
from brimful_worker.limiter import Limiter
from brimful_worker.local.server.valkey import Valkey

NAME = "service"


@asynccontextmanager
async def limiters(valkey: Valkey, count: int, *tags: str, **limits: Any) -> AsyncIterator[list[Limiter]]:
    """``count`` limiters on a server whose memory is marked as complete for these key tags."""
    with redis.Redis.from_url(valkey.url) as client:
        for tag in (NAME, *tags):
            mark_clean(client, tag)
    many = [Limiter(valkey.url, NAME, **limits) for _ in range(count)]
    try:
        yield many
    finally:
        for one in many:
            await one.aclose()
