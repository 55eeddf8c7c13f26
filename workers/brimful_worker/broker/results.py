"""Celery's Redis result backend, changed so that a result is kept until it is stored.

Celery retries while Redis is away, but an error reply (READONLY, OOM, …) lost the result, and with it a sampled answer.
The task is acknowledged when its result is stored, so until then nothing is lost if the worker dies.

Private parts of celery 5.7.0:
    celery.backends.redis.RedisBackend: _set, exception_safe_to_retry
"""

from __future__ import annotations

import contextlib
from typing import Any

import redis
from celery.backends.redis import RedisBackend

from brimful.errors import PermanentFailure
from brimful.outcome import Cause
from brimful.state.redis_retry import refused_for_now

_LARGE = 2**20
"""Bytes from which a result may be more than the server takes (``proto-max-bulk-len`` is at least this)."""
_TRIES = 3
_set = RedisBackend._set
_safe_to_retry = RedisBackend.exception_safe_to_retry


def install() -> None:
    """For this process, and for every app in it. Idempotent."""
    RedisBackend.exception_safe_to_retry = _safe_to_retry_too
    RedisBackend._set = _set_or_fail


def _safe_to_retry_too(self: RedisBackend, exc: Exception) -> bool:
    return bool(_safe_to_retry(self, exc)) or refused_for_now(exc)


def _set_or_fail(self: RedisBackend, key: Any, value: Any, expires: float | None = None) -> None:
    """Raises PermanentFailure for a result that this server will never take."""
    for _ in range(_TRIES):
        try:
            _set(self, key, value, expires)
            return
        except (redis.RedisError, OSError) as error:
            if len(value) < _LARGE:
                raise
            if refused_for_now(error):
                if isinstance(error, redis.OutOfMemoryError) and len(value) > _max_memory(self.client):
                    break
                raise
            self.client.ping()  # an answer means that the value was refused: such a server closes the connection
    raise PermanentFailure(
        f"the result is too large for Redis: {len(value):,} bytes; ask for fewer choices or tokens at once",
        Cause.BAD_ANSWER.value,
    )


def _max_memory(client: redis.Redis) -> float:
    with contextlib.suppress(redis.RedisError):
        return float(client.info("memory")["maxmemory"]) or float("inf")
    return float("inf")
