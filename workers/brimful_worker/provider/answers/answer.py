"""An answer of the provider and its classification, as plain values without an HTTP library.

The dataclasses are not frozen: they are made for every request, and a frozen one takes three times as long to make.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from brimful.outcome import Cause
from brimful_worker.provider.answers.limits import Limit

_REQUEST_IDS = ("x-request-id", "request-id", "apim-request-id", "x-portkey-trace-id")
"""Of most providers, of Anthropic, Azure and Portkey."""
_LONGEST_ID = 200


def request_id_of(headers: Mapping[str, str]) -> str:
    """The provider's own id of a request, from its answer's headers; "" if they name none."""
    for name in _REQUEST_IDS:
        if (id := headers.get(name)) is not None:
            return id[:_LONGEST_ID] if id.isprintable() else ""
    return ""


@dataclass(slots=True)
class Answer:
    """An HTTP response. ``headers`` is looked up with lower-case names; ``body`` is decompressed, and complete under a
    status of 2xx."""

    status: int
    headers: Mapping[str, str]
    body: bytes | bytearray

    @property
    def request_id(self) -> str:
        """:func:`request_id_of`"""
        return request_id_of(self.headers)


@dataclass(slots=True)
class TransportError:
    """The exchange ended without a complete HTTP response."""

    cause: Cause
    """CONNECTION, TIMEOUT, BAD_REQUEST (the request cannot be sent) or BAD_ANSWER (too large, or not HTTP)."""
    message: str
    stale: bool = False
    """The server closed a reused connection before it sent any byte of the answer: no failure of the provider."""
    permanent: bool = False
    """A retry cannot help: the certificate does not verify, the URL is invalid, the answer is too large."""
    abandoned: bool = False
    """The client gave up; the provider may still be working on the request."""


class Kind(StrEnum):
    SUCCESS = "success"
    SHORT = "short"
    """Some choices are missing: ``completion`` has the others, ``missing`` lists their indexes."""
    TRANSIENT = "transient"
    THROTTLED = "throttled"
    PERMANENT = "permanent"
    FILTERED = "filtered"
    KEY_REFUSED = "key_refused"
    BUDGET = "budget"


@dataclass(slots=True)
class Classification:
    """What an answer means for the request. ``cause`` and ``message`` are set for every kind except SUCCESS."""

    kind: Kind
    completion: dict[str, Any] | None = None
    """SUCCESS and SHORT: the Completion. Its choices are sorted by ``index``, which is an int and unique."""
    missing: tuple[int, ...] = ()
    """SHORT: the indexes of the missing choices."""
    cause: Cause | None = None
    message: str = ""
    status: int | None = None
    """The HTTP status; None without an HTTP response."""
    retry_after_s: float | None = None
    """THROTTLED and TRANSIENT: seconds that the provider asked to wait, not capped yet."""
    limit: Limit | None = None
    """THROTTLED: which of the provider's limits refused the request."""
    stated_starts: int = 0
    """Requests a minute that the answer's headers allow; 0 if they name no such limit."""
    code: str | None = None
    """The provider's own error code."""
    stale: bool = False
    """TRANSIENT: a reused connection was closed; retry at once."""
    abandoned: bool = False
    """TRANSIENT: the provider may still be working on the request, so its slot cools down before it is used again."""
    request_id: str = ""
    """:attr:`Answer.request_id`"""

    @property
    def tokens_used(self) -> int | None:
        """``usage.total_tokens`` of the completion, if present."""
        usage = self.completion.get("usage") if self.completion else None
        total = usage.get("total_tokens") if isinstance(usage, dict) else None
        return total if isinstance(total, int) and not isinstance(total, bool) else None
