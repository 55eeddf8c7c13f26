"""How the provider answered the fleet last. Workers write it; ``status``, ``doctor`` and the metrics read it.

The HASH :func:`brimful.state.keys.health_key` has one field a state: JSON with ``at`` and ``since`` (Unix seconds by a
worker's clock: its last answer of this state, and the first of them in a row), ``status`` (HTTP) and ``message``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

KEPT_S = 7 * 24 * 3600
"""The HASH expires this long after the last answer."""


class ProviderState(StrEnum):
    OK = "ok"
    """It serves requests. That one is refused for what it asks is no fault of the provider."""
    THROTTLED = "throttled"
    """429"""
    FAILING = "failing"
    """5xx, timeouts, no connection."""
    QUOTA = "quota"
    """The key's budget or quota is at its end."""
    KEY_REFUSED = "key_refused"
    """401 or 403"""


@dataclass(slots=True)
class LastAnswer:
    at: float
    since: float
    status: int | None = None
    """None: there was no HTTP answer."""
    message: str = ""


@dataclass(frozen=True, slots=True)
class ProviderHealth:
    """The state of the newest answer of the whole fleet. Times are Unix seconds."""

    state: str
    since: float
    at: float
    status: int | None
    message: str
    last: dict[str, float]
    """State → its last answer."""


def health_fields(answers: Mapping[ProviderState, LastAnswer]) -> dict[Any, Any]:
    """The HASH's fields, strings both."""
    return {state.value: json.dumps(asdict(answer)) for state, answer in answers.items()}


def parse_health(raw: Mapping[str, str]) -> ProviderHealth | None:
    """The HASH's content, of workers of any version; None if there was no answer yet."""
    names = {field.name for field in fields(LastAnswer)}
    answers: dict[str, LastAnswer] = {}
    for state, text in raw.items():
        said = json.loads(text)
        answers[state] = LastAnswer(**{name: said[name] for name in names if name in said})
    if not answers:
        return None
    state, newest = max(answers.items(), key=lambda item: item[1].at)
    others = [answer.at for name, answer in answers.items() if name != state]
    return ProviderHealth(
        state=state,
        since=max([newest.since, *others]),  # another worker may have seen another answer in between
        at=newest.at,
        status=newest.status,
        message=newest.message,
        last={name: answer.at for name, answer in answers.items()},
    )
