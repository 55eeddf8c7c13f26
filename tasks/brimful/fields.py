"""The fields of a request that brimful knows. Others are sent unchanged and pointed out, since they may be misspelt."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from difflib import get_close_matches

from brimful.names import IDEMPOTENCY_KEY
from brimful.profile import all_fields

OURS = frozenset({"id", "mode", "workload", "system"})
"""Fields of a request that brimful reads itself."""
KNOWN = all_fields() | OURS
"""Those, and the fields of any provider's completions and chat completions."""
_CUTOFF = 0.8
_HINTS = {"timeout": "only Fleet.sample and AsyncFleet.sample take a timeout"}
_LIBRARIES = {"asyncio", "brimful", "celery", "concurrent", "contextlib", "functools", "kombu"}


class UnknownFieldWarning(UserWarning):
    """A field of a request is unknown to brimful. It is sent unchanged; a filter for this category silences it."""


def likely(name: str, known: Iterable[str] = KNOWN) -> str | None:
    """The known field that ``name`` probably misspells."""
    close = get_close_matches(name.lower().replace("-", "_"), known, 1, _CUTOFF)
    return close[0] if close else None


def unknown_field(name: str) -> str:
    """The message about an unknown field."""
    text = f"field {name!r} is unknown to brimful and sent unchanged"
    if meant := _HINTS.get(name):
        return f"{text}; {meant}"
    return f"{text}; did you mean {meant}?" if (meant := likely(name)) else text


def warn_of_unknown(names: Iterable[str]) -> None:
    """Warn of each unknown field, at the line of the service that names it."""
    unknown = set(names) - KNOWN - {IDEMPOTENCY_KEY, "request"}
    if not unknown:
        return
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES:
        level, frame = level + 1, frame.f_back
    for name in sorted(unknown):
        warnings.warn(unknown_field(name), UnknownFieldWarning, stacklevel=level)
