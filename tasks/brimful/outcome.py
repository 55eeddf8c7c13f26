"""The outcome of a request: a completion or a failure with its cause, with attempts and times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from operator import attrgetter
from typing import Any

from brimful.errors import (
    BudgetExhausted,
    Cancelled,
    KeyRefused,
    PermanentFailure,
    SampleError,
    TransientFailure,
)


class Cause(StrEnum):
    """Why a request, or one attempt at it, failed. Users see these words in summaries and error files."""

    BAD_REQUEST = "bad_request"
    """400, 404, 405, 413, 422: the provider will never accept it."""
    CONTENT_FILTER = "content_filter"
    KEY_REFUSED = "key_refused"
    """401, 403"""
    BUDGET = "budget"
    """The key's tokens, or the run's own budget, are used up."""
    RATE_LIMITED = "rate_limited"
    """429 rate_limited"""
    QUEUE_FULL = "queue_full"
    """429 queue_full"""
    SERVER_ERROR = "server_error"
    """500, 502, 503, 504 and other 5xx"""
    TIMEOUT = "timeout"
    """No answer within the timeout, counted from sending."""
    CONNECTION = "connection"
    """Refused, reset, DNS, TLS, or closed in the middle of an answer."""
    BAD_ANSWER = "bad_answer"
    """The answer is not a completion: not JSON, an error with status 200, choices missing or too many."""
    LEASE_LOST = "lease_lost"
    """The slot's lease could not be renewed, so the request was aborted."""
    JOB_FAILED = "job_failed"
    JOB_CANCELLED = "job_cancelled"
    JOB_EXPIRED = "job_expired"
    """The Job's result expired before it was fetched."""
    CANCELLED = "cancelled"
    """Revoked, or the run was stopped."""
    WORKER_LOST = "worker_lost"
    """Workers died while they had the request on the wire, more often than it is tried again."""
    REJECTED = "rejected"
    """Of a run: ``--schema`` or ``--hook`` accepted none of the samples of a choice."""
    HOOK_ERROR = "hook_error"
    """Of a run: the ``--hook`` itself failed on a rollout."""
    VERSION = "version"
    """The request was sent by a later release of brimful than its worker's."""
    INTERNAL = "internal"
    """A fault in brimful; the worker's log has its traceback."""


_ERRORS: Mapping[Cause, type[SampleError]] = {
    Cause.BAD_REQUEST: PermanentFailure,
    Cause.CONTENT_FILTER: PermanentFailure,
    Cause.JOB_CANCELLED: PermanentFailure,
    Cause.KEY_REFUSED: KeyRefused,
    Cause.BUDGET: BudgetExhausted,
    Cause.CANCELLED: Cancelled,
}


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request failed."""

    cause: Cause
    message: str
    """The status and the provider's words, cut short; never the key or the prompt."""
    status: int | None = None
    permanent: bool = False
    """Whether the same request would fail again."""
    code: str | None = None
    """The provider's error code, such as ``rate_limited``."""
    retry_after_s: float | None = None
    """The ``Retry-After`` of the last answer, in seconds."""

    def error(self, attempts: int = 0, request_id: str = "", provider_request_ids: Iterable[str] = ()) -> SampleError:
        """The exception for it, with what the outcome says of the request. ``attempts``: calls to the provider."""
        kind = _ERRORS.get(self.cause, PermanentFailure if self.permanent else TransientFailure)
        details: dict[str, Any] = {"status": self.status, "code": self.code, "retry_after_s": self.retry_after_s}
        details |= {"attempts": attempts, "request_id": request_id, "provider_request_ids": list(provider_request_ids)}
        return kind(self.message, self.cause.value, {name: value for name, value in details.items() if value})


@dataclass(slots=True)
class Outcome:
    """Exactly one of ``completion`` and ``failure`` is set.

    Its fields can be set, so it is not hashable. (A frozen class would take three times as long to make.)

    Times are seconds: ``waited_s`` waiting for slots and starts, ``provider_s`` from sending to the end of the answer,
    summed over the attempts, ``retrying_s`` backing off. ``started_at`` and ``ended_at`` are Unix times of the first
    byte sent and of the end.
    """

    id: str
    completion: dict[str, Any] | None = None
    """The provider's Completion; ``choices`` complete and in the order of ``index``."""
    failure: Failure | None = None
    attempts: int = 0
    """Requests sent to the provider, polls of a Job not counted."""
    retries: dict[str, int] = field(default_factory=dict)
    """Failed attempts by :class:`Cause`."""
    waited_s: float = 0.0
    provider_s: float = 0.0
    retrying_s: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    worker: str = ""
    unmetered_tokens: int = 0
    """What the provider may have generated for attempts that ended without ``usage`` (cut off, timed out, reset, with
    their worker): all that each of them had asked for."""
    provider_request_ids: list[str] = field(default_factory=list)
    """The provider's own ids of the attempts that it answered, in their order, as its support asks for them
    (``x-request-id``)."""

    @property
    def ok(self) -> bool:
        return self.failure is None

    @property
    def rate_limited(self) -> int:
        """Answers of 429."""
        retries = self.retries
        return retries.get(Cause.RATE_LIMITED, 0) + retries.get(Cause.QUEUE_FULL, 0) if retries else 0

    def as_message(self) -> dict[str, Any]:
        """JSON-ready; :meth:`from_message` is its inverse. The completion is shared, not copied."""
        message: dict[str, Any] = dict(zip(_NAMES, _VALUES(self), strict=True))
        if self.failure is not None:
            message["failure"] = asdict(self.failure)
        return message

    @classmethod
    def from_message(cls, raw: Mapping[str, Any]) -> Outcome:
        """From a worker of any version: unknown fields are ignored, missing ones get their defaults."""
        values = raw
        if not _OUTCOME_FIELDS.issuperset(raw):
            values = {name: value for name, value in raw.items() if name in _OUTCOME_FIELDS}
        if (failure := values.get("failure")) is not None:
            values = {**values, "failure": _failure(failure)}
        return cls(**values)


_NAMES = tuple(field.name for field in fields(Outcome))
_VALUES = attrgetter(*_NAMES)
_OUTCOME_FIELDS = frozenset(_NAMES)
_FAILURE_FIELDS = tuple(field.name for field in fields(Failure))


def _failure(raw: Mapping[str, Any]) -> Failure:
    """A cause that this version does not know becomes ``internal``, named in the message."""
    values = {"message": "", **{name: raw[name] for name in _FAILURE_FIELDS if name in raw}}
    try:
        cause = Cause(raw["cause"])
    except (KeyError, ValueError):
        cause = Cause.INTERNAL
        values["message"] = f"{raw.get('cause', 'unknown cause')}: {values['message']}"
    return Failure(**{**values, "cause": cause})


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sampled continuation of a completion: ``index = prompt_index * n + choice_index`` (provider docs)."""

    prompt_index: int
    choice_index: int
    text: str
    """Of a chat: the content of the message."""
    finish_reason: str | None
    choice: Mapping[str, Any] = field(default_factory=dict)
    """The provider's own choice object."""
    usage: Mapping[str, Any] | None = None
    """In a map's result: its share of the request's usage. The shares add up to what the provider counted."""

    @property
    def message(self) -> Mapping[str, Any] | None:
        """The chat message; None for a completion."""
        message = self.choice.get("message")
        return message if isinstance(message, Mapping) else None

    @property
    def tool_calls(self) -> list[Any]:
        """Tool calls of the message; an empty list if it has no such field."""
        return list((self.message or {}).get("tool_calls") or ())

    @property
    def reasoning(self) -> str | None:
        """The message's ``reasoning_content`` or ``reasoning``, where the server returns one."""
        message = self.message or {}
        return message.get("reasoning_content") or message.get("reasoning")

    @property
    def logprobs(self) -> Any:
        """As the provider gives them; None if they were not asked for."""
        return self.choice.get("logprobs")


def rollouts(completion: Mapping[str, Any], n: int) -> Iterator[Rollout]:
    """The rollouts of a complete completion, in the order of their index. ``n``: choices per prompt."""
    for choice in completion["choices"]:
        prompt_index, choice_index = divmod(int(choice["index"]), n)
        message = choice.get("message")
        text = message.get("content") if isinstance(message, dict) else choice.get("text")
        if isinstance(text, list):  # content in parts
            text = "".join(str(part.get("text") or "") for part in text if isinstance(part, dict))
        yield Rollout(prompt_index, choice_index, text or "", choice.get("finish_reason"), choice)
