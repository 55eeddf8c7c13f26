"""Which of the provider's limits a refusal (429) is about. Pure tables, as in :mod:`.refusal`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum


class Limit(StrEnum):
    SLOTS = "slots"
    """Requests active at the same time."""
    STARTS = "starts"
    """Requests in a window."""
    TOKENS = "tokens"
    """Tokens in a window."""
    UNKNOWN = "unknown"


_SLOTS = re.compile(r"queue_full|concurren|parallel|in_?flight|simultaneous")
_TOKENS = re.compile(r"token|^tpm|^tpd")
_STARTS = re.compile(r"^rate_limited$|^requests$|^rpm|^rpd|request_rate|requests_per")
_REMAINING = {
    "x-ratelimit-remaining-requests": Limit.STARTS,
    "anthropic-ratelimit-requests-remaining": Limit.STARTS,
    "x-ratelimit-remaining-tokens": Limit.TOKENS,
    "anthropic-ratelimit-tokens-remaining": Limit.TOKENS,
    "anthropic-ratelimit-input-tokens-remaining": Limit.TOKENS,
    "anthropic-ratelimit-output-tokens-remaining": Limit.TOKENS,
}


def refused_limit(codes: Sequence[str], headers: Mapping[str, str]) -> Limit:
    """``codes``: the error's, in lower snake case, the most specific first. ``headers`` has lower-case names."""
    for code in codes:
        for pattern, limit in ((_SLOTS, Limit.SLOTS), (_TOKENS, Limit.TOKENS), (_STARTS, Limit.STARTS)):
            if pattern.search(code):
                return limit
    used_up = [limit for name, limit in _REMAINING.items() if headers.get(name, "").strip() == "0"]
    return used_up[0] if used_up else Limit.UNKNOWN


_STATED = (
    ("x-ratelimit-limit-requests", "x-ratelimit-reset-requests"),
    ("anthropic-ratelimit-requests-limit", "anthropic-ratelimit-requests-reset"),
)
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:([\d.]+)s)?(?:([\d.]+)ms)?")
_UNITS_S = (86400.0, 3600.0, 60.0, 1.0, 0.001)
_LATER = 1.1


def stated_starts(headers: Mapping[str, str], *, window_s: float, now: float) -> int:
    """Requests in a window that an answer's headers state, in OpenAI's or Anthropic's spelling; 0 if they state none.

    A limit whose reset is further away than a window of ``window_s`` is one of a longer time, such as a day, and is not
    meant. ``headers`` has lower-case names; ``now`` is a Unix time.
    """
    for name, reset in _STATED:
        text = headers.get(name, "")
        if text.isascii() and text.isdecimal() and len(text) < 10 and (limit := int(text)):
            return limit if _seconds(headers.get(reset, ""), now) <= window_s * _LATER else 0
    return 0


def _seconds(reset: str, now: float) -> float:
    """``1m0.8s``, ``6ms``, ``12`` (seconds) or an RFC 3339 time, as seconds from now; 0 for any other text."""
    try:
        if "T" in reset:
            moment = datetime.fromisoformat(reset)
            if moment.tzinfo is None:  # no valid RFC 3339 time; UTC is what is meant, wherever the worker runs
                moment = moment.replace(tzinfo=UTC)
            return moment.timestamp() - now
        if (found := _DURATION.fullmatch(reset)) and reset:
            return sum(float(number) * unit for number, unit in zip(found.groups(), _UNITS_S, strict=True) if number)
        return float(reset or 0)
    except (ValueError, OverflowError):
        return 0.0
