"""``Retry-After`` in every form that providers send it. Pure: the present time is passed in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime


def retry_after(headers: Mapping[str, str], *, now: float) -> float | None:
    """Seconds to wait, at least 0; None where the answer names no time that makes sense.

    ``retry-after-ms`` (milliseconds) beats ``Retry-After``, which is seconds, fractions allowed, or an HTTP date.
    ``headers`` has lower-case names; ``now`` is a Unix time: the answer's own ``Date`` beats it as the origin of an
    HTTP date, so that a worker's wrong clock does not matter.
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
    if raw is None:
        return None
    try:
        value = float(raw.strip())
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _date(raw: str | None) -> float | None:
    if raw is None:
        return None
    try:
        moment = parsedate_to_datetime(raw.strip())
        if moment.tzinfo is None:  # "-0000": the date is UTC by RFC 9110 all the same
            moment = moment.replace(tzinfo=UTC)
        return moment.timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
