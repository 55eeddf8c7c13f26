"""Which of the provider's limits a refusal (429) is about. Pure tables, as in :mod:`.refusal`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
