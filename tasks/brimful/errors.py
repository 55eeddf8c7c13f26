"""One error tree.

BrimfulError
├── UsageError              exit 2   bad input, bad setting, nothing was started
│   ├── SettingError                 a setting is missing or wrong; names it
│   ├── InputError                   a line of an input file; names file and line
│   └── BadRequest                   a request that no provider call can be made of
│       └── RequestTooLarge          more tokens than one request may ask
├── SampleError             exit 3   a request ended without a completion; ``cause`` says why
│   ├── PermanentFailure             the provider refused it; asking again will not help
│   ├── TransientFailure             attempts or time ran out on failures that come and go
│   ├── Cancelled                    revoked or abandoned by its caller
│   ├── SampleTimeout                its caller's ``timeout`` passed; also a TimeoutError
│   ├── BudgetExhausted     exit 4   the key's tokens are at their end
│   └── KeyRefused          exit 5   401 or 403
└── FleetError              exit 1   Redis, the workers or the embedded server
    ├── RedisUnreachable    exit 2   nothing answers there, or it refuses this user
    │   └── RedisUnusable            a setting must change: wrong password, untrusted certificate, a cluster
    ├── RedisRefused                 it answers, and takes nothing: its disk or memory is full, it is read-only
    └── NoWorker                     a task body was called outside a worker

Every error is built from plain strings, so that it survives Celery's JSON result backend unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any


class ExitCode(IntEnum):
    """What the ``brimful`` command returns."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    FAILURES = 3
    BUDGET = 4
    KEY_REFUSED = 5
    INTERRUPTED = 130


class BrimfulError(Exception):
    """The root. ``str(error)`` names the thing, the place and the way out."""

    exit_code = ExitCode.INTERNAL


class UsageError(BrimfulError):
    exit_code = ExitCode.USAGE


class SettingError(UsageError):
    """A setting is missing or wrong."""


class InputError(UsageError):
    """A line of an input cannot be used; the message begins with ``FILE:LINE:``."""


class BadRequest(UsageError):
    """The fields do not make a request."""


class RequestTooLarge(BadRequest):
    """prompts x n x max_tokens is above what the provider takes in one request."""


class SampleError(BrimfulError):
    """A request ended without a completion. ``cause`` is a :class:`brimful.outcome.Cause` value."""

    exit_code = ExitCode.FAILURES

    def __init__(self, message: str = "", cause: str = "unknown", details: Mapping[str, Any] | None = None) -> None:
        """``details``: ``status``, ``code``, ``retry_after_s`` and ``attempts``, as far as they are known."""
        # Not super(): in SampleTimeout that is OSError, which reads two arguments as errno and text.
        BaseException.__init__(self, message, cause, *([dict(details)] if details else []))
        details = details or {}
        self.message = message
        self.cause = cause
        self.status: int | None = details.get("status")
        """The HTTP status of the last answer; None if there was none."""
        self.code: str | None = details.get("code")
        """The provider's error code, such as ``rate_limited``."""
        self.retry_after_s: float | None = details.get("retry_after_s")
        """The ``Retry-After`` of the last answer, in seconds."""
        self.attempts: int = details.get("attempts") or 0
        """Calls to the provider, each of which used a start."""

    def __str__(self) -> str:
        return f"{self.cause}: {self.message}"


class PermanentFailure(SampleError):
    """The provider refused the request itself."""


class TransientFailure(SampleError):
    """Attempts or the deadline ran out."""


class Cancelled(SampleError):
    """Revoked, or its run was stopped."""


class SampleTimeout(SampleError, TimeoutError):
    """The ``timeout`` of :meth:`brimful.Fleet.sample` passed. The request is cancelled."""


class BudgetExhausted(SampleError):
    exit_code = ExitCode.BUDGET


class KeyRefused(SampleError):
    exit_code = ExitCode.KEY_REFUSED


class FleetError(BrimfulError):
    """The fleet's own parts failed."""


class RedisUnreachable(FleetError):
    exit_code = ExitCode.USAGE


class RedisUnusable(RedisUnreachable):
    """It answers, and cannot be used with these settings; waiting does not help."""


class RedisRefused(FleetError):
    """Redis answers, and refuses what it is asked for; tried on for a while."""


class NoWorker(FleetError):
    """A task's body ran in a process that is no brimful worker."""
