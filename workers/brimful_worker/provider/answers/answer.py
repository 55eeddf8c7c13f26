"""What came back from the provider, and what it means: plain values, no HTTP library.

They are made for every request, so they are not frozen: that would make each three times as dear to make.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from brimful.outcome import Cause


@dataclass(slots=True)
class Answer:
    """A whole HTTP answer. ``headers`` are looked up by names in lower case; ``body`` is decompressed."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    too_large: bool = False
    """Reading was given up at the bound; ``body`` is empty."""


@dataclass(slots=True)
class TransportError:
    """No whole answer came."""

    cause: Cause
    """CONNECTION, TIMEOUT, LEASE_LOST, or BAD_ANSWER for bytes that are no HTTP."""
    message: str
    stale: bool = False
    """A kept-alive connection was closed by the server before a byte of the answer came: nobody's failure."""
    permanent: bool = False
    """Asking again will not help: a certificate that does not verify, a URL that is none."""
    abandoned: bool = False
    """We gave it up; the provider may go on with it for a while."""


class Kind(StrEnum):
    SUCCESS = "success"
    SHORT = "short"
    """Some choices are there, others are not: ``completion`` has those, ``missing`` names the others."""
    TRANSIENT = "transient"
    THROTTLED = "throttled"
    PERMANENT = "permanent"
    FILTERED = "filtered"
    KEY_REFUSED = "key_refused"
    BUDGET = "budget"


@dataclass(slots=True)
class Classification:
    """What an answer means. ``cause`` and ``message`` are set for all kinds but SUCCESS."""

    kind: Kind
    completion: dict[str, Any] | None = None
    """SUCCESS and SHORT: the Completion; its choices have whole, distinct indexes and are in their order."""
    missing: tuple[int, ...] = ()
    """SHORT: the indexes that are not there."""
    cause: Cause | None = None
    message: str = ""
    status: int | None = None
    retry_after_s: float | None = None
    """THROTTLED and TRANSIENT: what the provider asked for; not yet bounded."""
    stale: bool = False
    """TRANSIENT: a kept-alive connection had gone away; ask again at once."""
    abandoned: bool = False
    """TRANSIENT: we gave it up, and the provider may go on with it: its slot needs a rest."""

    @property
    def tokens_used(self) -> int | None:
        """``usage.total_tokens`` of a completion that tells it."""
        usage = self.completion.get("usage") if self.completion else None
        total = usage.get("total_tokens") if isinstance(usage, dict) else None
        return total if isinstance(total, int) and not isinstance(total, bool) else None
