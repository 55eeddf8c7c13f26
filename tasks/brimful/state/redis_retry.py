"""Ask Redis until it answers. What it *answers*, though, is not absence: a refusal is told, and borne for a while."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from redis import RedisError
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    ClusterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)

from brimful.errors import RedisRefused, RedisUnreachable

log = logging.getLogger(__name__)

_T = TypeVar("_T")
AWAY = (RedisError, OSError)
REFUSED_S = 30.0
"""A refusal that lasts so long ends the run."""
_PAUSE_S = 0.5
_SAID_AGAIN_S = 60.0
_LATELY_S = 30.0
_WORDS: dict[type[RedisError], str] = {OutOfMemoryError: "OOM", ReadOnlyError: "READONLY", NoPermissionError: "NOPERM"}
"""Which redis-py cuts off."""
_WAYS_OUT = {
    "MISCONF": "free space on the disk where Redis keeps its data",
    "OOM": "give Redis more memory (maxmemory)",
    "READONLY": "let BRIMFUL_REDIS_URL name the primary",
}


class RetryPolicy:
    """For one thing asked again and again. ``bear(error)`` returns while it is worth asking again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._refused_at: float | None = None

    def bear(self, error: BaseException) -> None:
        """Raises RedisUnreachable (exit 2) for a user without rights; RedisRefused (exit 1) when a refusal lasts."""
        refusal = _refusal(error)
        if refusal is None:
            self._refused_at = None
            _say_once(f"Redis does not answer ({type(error).__name__}); trying on")
            return
        text = _text(refusal)
        if isinstance(refusal, (AuthenticationError, AuthorizationError, NoPermissionError)):
            raise RedisUnreachable(
                f"Redis refuses this user: {text}. Check user, password and rights (ACL) in BRIMFUL_REDIS_URL"
            ) from None
        now = self._clock()
        if self._refused_at is None:
            self._refused_at = now
        refused = RedisRefused(
            f"Redis refuses to go on: {text}. {_way_out(text)}, then type the same command again: it goes on from here"
        )
        _last[:] = [(time.monotonic(), refused)]
        if now - self._refused_at >= REFUSED_S:
            raise refused from None
        _say_once(f"Redis refuses: {text}; trying on for {REFUSED_S:.0f} s")


def refused_lately() -> RedisRefused | None:
    """What Redis has refused within the last seconds: workers that die meanwhile die of the same."""
    return next((refused for at, refused in _last if time.monotonic() - at < _LATELY_S), None)


async def retry_until_available(call: Callable[[], Awaitable[_T]]) -> _T:
    """``call`` may be made any number of times. Raises FleetError when Redis is there and refuses."""
    patience = RetryPolicy()
    while True:
        try:
            return await reraise_cancellation(call)
        except AWAY as error:
            patience.bear(error)
            await asyncio.sleep(_PAUSE_S)


async def reraise_cancellation(call: Callable[[], Awaitable[_T]]) -> _T:
    """``call()``, and CancelledError where the task was cancelled meanwhile and ``call`` has made nothing of it.

    redis-py loses a cancellation that comes while it takes a connection out of its pool. ``asyncio.run`` cancels each
    task once, and would wait for ever for one that goes on.
    """
    before = _cancellations()
    try:
        return await call()
    finally:
        if _cancellations() > before:
            raise asyncio.CancelledError


def _cancellations() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0


def _refusal(error: BaseException | None) -> RedisError | None:
    """Redis's own words in it, also where a library has wrapped them; None where it was not heard."""
    while error is not None:
        if isinstance(error, (ClusterDownError, TryAgainError)):
            return None  # a failover under way
        if isinstance(error, (ResponseError, AuthenticationError, AuthorizationError)):
            return error
        error = error.__cause__
    return None


def _text(refusal: RedisError) -> str:
    """Without the command that redis-py puts before a pipeline's error."""
    _, pipeline, text = str(refusal).rpartition(" caused error: ")
    text = (text.strip("(,')") if pipeline else text).strip().rstrip(".")  # it puts a tuple there
    word = _WORDS.get(type(refusal), "")
    return text if text.startswith(word) else f"{word} {text}"


def _way_out(text: str) -> str:
    way = next((way for word, way in _WAYS_OUT.items() if text.startswith(word)), "look at its log")
    return way[0].upper() + way[1:]


_last: list[tuple[float, RedisRefused]] = []
_said: dict[str, float] = {}


def _say_once(text: str) -> None:
    """Several parts of a run meet the same trouble at the same time."""
    now = time.monotonic()
    if now - _said.get(text, -_SAID_AGAIN_S) >= _SAID_AGAIN_S:
        log.warning("brimful: %s", text)
    _said[text] = now
