"""Limits that the provider states in the headers of its answers. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime

_MINUTE_MOST_S = 66.0
"""A reset that is further away belongs to a limit of a longer time, such as a day."""
_HEADERS = (
    ("x-ratelimit-limit-requests", "x-ratelimit-reset-requests"),
    ("anthropic-ratelimit-requests-limit", "anthropic-ratelimit-requests-reset"),
)
_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?!s))?(?:([\d.]+)s)?(?:([\d.]+)ms)?")
_UNITS_S = (86400.0, 3600.0, 60.0, 1.0, 0.001)


def stated_starts(headers: Mapping[str, str], *, now: float) -> int:
    """Requests a minute that an answer's headers allow, in OpenAI's or Anthropic's spelling; 0 if they name none.

    OpenAI and Anthropic count requests by the minute. A limit whose reset is further away is one of a longer time, such
    as a day, and is not meant. ``headers`` has lower-case names; ``now`` is a Unix time.
    """
    for name, reset in _HEADERS:
        text = headers.get(name)
        if text and text.isascii() and text.isdecimal() and len(text) < 10 and (limit := int(text)):
            return limit if _seconds(headers.get(reset, ""), now) <= _MINUTE_MOST_S else 0
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
