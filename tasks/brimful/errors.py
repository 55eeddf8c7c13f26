"""The exceptions of brimful, and the exit codes of its command.

BrimfulError
├── UsageError              exit 2   bad input or a bad setting; nothing was started
│   ├── SettingError                 a setting is missing or wrong
│   ├── FleetTaken                   the fleet is another API key's
│   ├── VersionMismatch              a later release of brimful wrote it; names both versions
│   ├── InputError                   a line of an input file is wrong
│   └── BadRequest                   the fields do not make a request
│       └── RequestTooLarge          more tokens than one request may have
├── SampleError             exit 3   a request ended without a completion; ``cause`` says why
│   ├── PermanentFailure             the provider refused it; asking again will not help
│   ├── TransientFailure             attempts or time ran out on transient failures
│   ├── Cancelled                    revoked, or its run was stopped
│   ├── SampleTimeout                its caller's ``timeout`` passed; also a TimeoutError
│   ├── BudgetExhausted     exit 4   the key's tokens are used up
│   └── KeyRefused          exit 5   the provider refused the API key (401, 403)
└── FleetError              exit 1   Redis, the workers or the embedded server
    ├── RedisUnreachable    exit 2   Redis does not answer
    │   ├── RedisUnusable            it does, but not with these settings: password, certificate
    │   └── BrokerUnreachable        RabbitMQ, where it is the broker, does not answer
    │       └── BrokerUnusable       it does, but not with these settings; also a RedisUnusable
    ├── RedisRefused                 it refuses commands: out of memory, read-only, its disk is full
    └── NoWorker                     a task body ran outside a worker

Every exception is built from JSON values, so that Celery's result backend carries it unchanged.
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
    """The base class. ``str(error)`` says what is wrong, where, and what to do."""

    exit_code = ExitCode.INTERNAL


class UsageError(BrimfulError):
    """Bad input or a bad setting. Raised before anything is started."""

    exit_code = ExitCode.USAGE


class SettingError(UsageError):
    """A setting is missing or wrong. The message names the variable or the option."""


class FleetTaken(UsageError):
    """The fleet is another API key's; the message names its tag, its workers and the ways out."""


class VersionMismatch(UsageError):
    """A file, a message or a run in Redis was written by a later release than this program reads."""


class InputError(UsageError):
    """A line of an input file cannot be used. The message begins with ``FILE:LINE:``."""


class BadRequest(UsageError):
    """The fields do not make a request that the provider would take. The message names the field."""


class RequestTooLarge(BadRequest):
    """prompts x n x max_tokens, the prompts or n exceed what the provider takes in one request."""


class SampleError(BrimfulError):
    """A request ended without a completion. ``cause`` is a value of :class:`brimful.outcome.Cause`."""

    exit_code = ExitCode.FAILURES

    def __init__(self, message: str = "", cause: str = "unknown", details: Mapping[str, Any] | None = None) -> None:
        """``details``: the attributes below by name, as far as they are known."""
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
        self.request_id: str = details.get("request_id") or ""
        """The request's id in the workers' logs: of a single request its task's id."""
        self.provider_request_ids: list[str] = list(details.get("provider_request_ids") or ())
        """The provider's own ids of the attempts that it answered, in their order (``x-request-id``)."""

    def __str__(self) -> str:
        return f"{self.cause}: {self.message}"


class PermanentFailure(SampleError):
    """The provider refused the request, and would refuse it again."""


class TransientFailure(SampleError):
    """All attempts failed on transient errors, or the deadline passed."""


class Cancelled(SampleError):
    """The request was revoked, or its run was stopped."""


class SampleTimeout(SampleError, TimeoutError):
    """The ``timeout`` of :meth:`brimful.Fleet.sample` passed. The request is cancelled."""


class BudgetExhausted(SampleError):
    """The provider refused the request because the key's tokens are used up, or the run's own budget is."""

    exit_code = ExitCode.BUDGET


class KeyRefused(SampleError):
    """The provider answered 401 or 403: the API key is wrong or lacks a permission."""

    exit_code = ExitCode.KEY_REFUSED


class FleetError(BrimfulError):
    """Redis, a worker or the embedded server failed."""


class RedisUnreachable(FleetError):
    """No connection to Redis could be made in the time allowed."""

    exit_code = ExitCode.USAGE


class RedisUnusable(RedisUnreachable):
    """Redis cannot be used with these settings (a wrong password, an untrusted certificate); waiting does not help."""


class BrokerUnreachable(RedisUnreachable):
    """No connection to RabbitMQ, where it is the broker, could be made in the time allowed.

    Programs that wait for the fleet's servers, whichever they are, catch RedisUnreachable.
    """


class BrokerUnusable(BrokerUnreachable, RedisUnusable):
    """RabbitMQ cannot be used with these settings (a wrong password, an untrusted certificate)."""


class RedisRefused(FleetError):
    """Redis kept answering commands with errors (out of memory, read-only) for as long as they were retried."""


class NoWorker(FleetError):
    """A task's body was called in a process that is not a brimful worker."""
