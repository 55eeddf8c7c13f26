"""Sets up the admission's keys on a Redis server that was just started, before any process connects. Synchronous."""

from __future__ import annotations

import secrets
from typing import Any

import redis

from brimful.state.keys import admission_keys

_PROCESS_KEYS = ("start_only", "interactive", "batch", "heard", "commands", "pushed", "inbox", "workers")
_REBUILD_FIELDS = (
    "opens_at",
    "certain",
    "expected",
    "awaited",
    "veterans",
    "newcomers",
    "lost_at",
    "seen_used",
    "seen_at",
    "seen_tokens",
    "cools_until",
    "restored",
    "learners_at",
    "told",
    "probe",
)


def mark_clean(client: redis.Redis, tag: str) -> str:
    """Declare that no process of this key is alive. Returns the new epoch.

    Without this, the first process on a young server waits a lease for processes that may be on their way back. What
    the server remembers of slots and starts stays in force.
    """
    names = admission_keys(tag)
    server: Any = client.info("server")
    epoch = secrets.token_hex(8)
    last: Any = client.hget(names["state"], "last")
    with client.pipeline(transaction=True) as pipe:
        if last is not None:
            pipe.hset(names["state"], "last", int(last))  # without the mark of sums, which these deletions do not match
        pipe.delete(*[names[name] for name in _PROCESS_KEYS])
        pipe.hdel(names["state"], *_REBUILD_FIELDS)
        pipe.hset(names["state"], mapping={"epoch": epoch, "server": str(server["run_id"])})
        pipe.execute()
    return epoch


def assume_full(client: redis.Redis, tag: str) -> None:
    """Declare that the starts and tokens of the last window are not known: nothing starts until a window has passed."""
    state = admission_keys(tag)["state"]
    seconds, micros = client.time()
    now = seconds * 1000 + micros // 1000 + int(client.hget(state, "skew") or 0)
    with client.pipeline(transaction=True) as pipe:
        pipe.hdel(state, "epoch")
        pipe.hset(state, "full", now)
        pipe.execute()
