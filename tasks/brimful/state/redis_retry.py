"""Retrying Redis commands while the server is unreachable.

Connection errors are retried for as long as they last. Error replies (OOM, READONLY, MISCONF) are logged, retried for
:data:`REFUSAL_LIMIT_S`, and then raised.
"""

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
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)

from brimful.errors import RedisRefused, RedisUnreachable

log = logging.getLogger(__name__)

_T = TypeVar("_T")
REDIS_ERRORS = (RedisError, OSError)
"""What redis-py raises for a command that failed."""
REFUSAL_LIMIT_S = 30.0
"""An error reply that lasts this long is raised."""
_PAUSE_S = 0.5
_LOG_AGAIN_S = 60.0
_RECENT_S = 30.0
_PREFIXES: dict[type[BaseException], str] = {
    OutOfMemoryError: "OOM",
    ReadOnlyError: "READONLY",
    NoPermissionError: "NOPERM",
    MovedError: "MOVED",
}
"""Error codes that redis-py removes from the reply's text."""
_REMEDIES = {
    "MISCONF": "Free space on the disk where Redis keeps its data",
    "OOM": "Give Redis more memory (maxmemory)",
    "READONLY": "Let BRIMFUL_REDIS_URL name the primary",
    "MOVED": "Let BRIMFUL_REDIS_URL name a server without cluster mode",
}


_FOR_NOW = {
    *("READONLY", "NOREPLICAS", "OOM", "MISCONF", "NOPERM", "NOAUTH", "WRONGPASS"),
    *("LOADING", "BUSY", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "UNAVAILABLE"),
}
"""Codes of error replies that depend on the server's state or its settings, which change."""


def refused_for_now(error: BaseException) -> bool:
    """Whether a server that answers refused a command because of its own state: the same command may succeed later."""
    if isinstance(error, (ClusterDownError, TryAgainError)):
        return True
    reply = _error_reply(error)
    return reply is not None and reply_text(reply).lstrip(":' ").partition(" ")[0] in _FOR_NOW


class RetryPolicy:
    """Decides whether one failing Redis operation is worth another try."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, server: str = "Redis") -> None:
        """``server``: the name of the one that does not answer, for the log."""
        self._clock = clock
        self._server = server
        self._refused_at: float | None = None

    def check(self, error: BaseException) -> None:
        """Log ``error`` and return if the operation should be retried.

        Raises RedisUnreachable (exit 2) if this user may not run the command, and RedisRefused (exit 1) once error
        replies have lasted for :data:`REFUSAL_LIMIT_S`.
        """
        global _last_refusal
        reply = _error_reply(error)
        if reply is None:
            self._refused_at = None
            _log_once(f"{self._server} does not answer ({type(error).__name__}); retrying")
            return
        text = reply_text(reply)
        if isinstance(reply, (AuthenticationError, AuthorizationError, NoPermissionError)):
            raise RedisUnreachable(
                f"Redis refuses this user: {text}. Check the user, password and ACL of BRIMFUL_REDIS_URL"
            ) from None
        now = self._clock()
        if self._refused_at is None:
            self._refused_at = now
        remedy = next((remedy for code, remedy in _REMEDIES.items() if text.startswith(code)), "See its log")
        refused = RedisRefused(
            f"Redis refuses commands: {text}. {remedy}, then type the same command again: it resumes this run"
        )
        _last_refusal = (time.monotonic(), refused)
        if now - self._refused_at >= REFUSAL_LIMIT_S:
            raise refused from None
        _log_once(f"Redis refuses a command: {text}; retrying for {REFUSAL_LIMIT_S:.0f} s")


def recent_refusal() -> RedisRefused | None:
    """The last error reply of the past 30 seconds: workers that died meanwhile probably died of it too."""
    if _last_refusal is None or time.monotonic() - _last_refusal[0] >= _RECENT_S:
        return None
    return _last_refusal[1]


def forget_refusals() -> None:
    """Call this before a run: what an earlier run of this process met is not the reason why this one fails, and must
    not keep the same refusal out of the log."""
    global _last_refusal
    _last_refusal = None
    _logged_at.clear()


async def retry_until_available(call: Callable[[], Awaitable[_T]]) -> _T:
    """Await ``call()`` until it succeeds; it may run many times. Raises what :meth:`RetryPolicy.check` raises."""
    policy = RetryPolicy()
    while True:
        try:
            return await reraise_cancellation(call)
        except REDIS_ERRORS as error:
            policy.check(error)
            await asyncio.sleep(_PAUSE_S)


async def reraise_cancellation(call: Callable[[], Awaitable[_T]]) -> _T:
    """Await ``call()``; raise CancelledError if the task was cancelled meanwhile and ``call`` swallowed it.

    redis-py loses a cancellation that arrives while it takes a connection out of its pool. ``asyncio.run`` cancels each
    task only once, and would wait for ever for a loop around such a call.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task is not None else 0
    try:
        return await call()
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError


def _error_reply(error: BaseException | None) -> RedisError | None:
    """The error reply that ``error`` is or was caused by; None if the server did not answer or is failing over."""
    while error is not None:
        if isinstance(error, (ClusterDownError, TryAgainError)):
            return None
        if isinstance(error, (ResponseError, AuthenticationError, AuthorizationError)):
            return error
        error = error.__cause__
    return None


def reply_text(reply: BaseException) -> str:
    """The server's words, without the command that redis-py puts before a pipeline's error."""
    _, pipeline, text = str(reply).rpartition(" caused error: ")
    text = (text.strip("(,')") if pipeline else text).strip().rstrip(".")  # redis-py formats a tuple there
    prefix = _PREFIXES.get(type(reply), "")
    return text if text.startswith(prefix) else f"{prefix} {text}"


_last_refusal: tuple[float, RedisRefused] | None = None
_logged_at: dict[str, float] = {}


def _log_once(text: str) -> None:
    """Several tasks of a run meet the same error at the same time."""
    now = time.monotonic()
    if now - _logged_at.get(text, -_LOG_AGAIN_S) >= _LOG_AGAIN_S:
        log.warning("brimful: %s", text)
    _logged_at[text] = now
