"""Reads ``Retry-After`` in every form that providers send it. Pure: the current time is passed in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime


def retry_after(headers: Mapping[str, str], *, now: float) -> float | None:
    """Seconds to wait, at least 0; None if the headers name no valid time.

    ``retry-after-ms`` (milliseconds) takes precedence over ``Retry-After``, which is in seconds (fractions allowed) or
    an HTTP date (RFC 9110; ACS, "Batch rollouts", only says that a 429 includes it). ``headers`` has lower-case names.
    A date is relative to the response's own ``Date``, so that a worker's wrong clock does not matter; without one, to
    ``now``, a Unix time.
    """
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000.0
    raw = headers.get("retry-after")
    if (seconds := _number(raw)) is not None:
        return seconds
    until = _date(raw)
    if until is None:
        return None
    sent = _date(headers.get("date"))
    return max(0.0, until - (now if sent is None else sent))


def _number(raw: str | None) -> float | None:
    try:
        value = float(raw or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _date(raw: str | None) -> float | None:
    try:
        moment = parsedate_to_datetime((raw or "").strip())
        if moment.tzinfo is None:  # "-0000"; RFC 9110 dates are in UTC
            moment = moment.replace(tzinfo=UTC)
        return moment.timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
