"""What may be said about a Redis server just started, while no process of this key is connected. Synchronous."""

from __future__ import annotations

import secrets
from typing import Any

import redis

from brimful.state.keys import admission_keys

_CHUNK = 10_000
_PROCESS_KEYS = ("start_only", "interactive", "batch", "heard", "commands", "pushed", "inbox", "workers")
_REBUILD_FIELDS = ("opens_at", "certain", "expected", "seen_used", "seen_at", "told", "probe")


def mark_clean(client: redis.Redis, tag: str) -> str:
    """Declare that no process of this key is alive. Returns the new epoch.

    Without this, the first process on a young server waits a lease for processes that may be on their way back. What
    the server remembers of slots and starts stays in force.
    """
    names = admission_keys(tag)
    server: Any = client.info("server")
    epoch = secrets.token_hex(8)
    with client.pipeline(transaction=True) as pipe:
        pipe.delete(*[names[name] for name in _PROCESS_KEYS])
        pipe.hdel(names["state"], *_REBUILD_FIELDS)
        pipe.hset(names["state"], mapping={"epoch": epoch, "server": str(server["run_id"])})
        pipe.execute()
    return epoch


def assume_full(client: redis.Redis, tag: str, *, starts: int | None, tokens: int | None) -> None:
    """Count the last window as full from now on, since what happened in it is not known: nothing starts for a window.

    ``starts`` and ``tokens`` are the limits; ``None`` = no such limit.
    """
    names = admission_keys(tag)
    seconds, micros = client.time()
    now = seconds * 1000 + micros // 1000 + int(client.hget(names["state"], "skew") or 0)
    unknown = f"unknown.{secrets.token_hex(8)}"
    with client.pipeline(transaction=True) as pipe:
        for first in range(0, starts or 0, _CHUNK):
            places = range(first, min(first + _CHUNK, starts or 0))
            pipe.zadd(names["starts"], {f"{unknown}.{place}": now for place in places})
        if tokens:
            pipe.zadd(names["tokens"], {unknown: now})
            pipe.hset(names["amounts"], unknown, str(tokens))
            pipe.hincrby(names["state"], "tokens_sum", tokens)
        pipe.execute()
