"""What a check says about one rollout. Separate since the checks, the judge and the streak of faults share it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from brimful.words.phrases import cut


@dataclass(frozen=True, slots=True)
class Accepted:
    columns: Mapping[str, Any] = field(default_factory=dict)
    """What the hook returned, JSON-ready."""


@dataclass(frozen=True, slots=True)
class Rejected:
    by: str
    """``schema`` or ``hook``"""
    reason: str


@dataclass(frozen=True, slots=True)
class Broken:
    """The hook raised something else than Again, returned what is no mapping, or took too long."""

    reason: str
    """The exception and its place, on one line."""
    kind: str
    """Equal for faults of the same kind at the same place."""


Verdict = Accepted | Rejected | Broken
REASON_KEPT = 300  # characters


def one_line(text: str) -> str:
    """White space becomes single spaces; cut to 300 characters."""
    return cut(" ".join(text.split()), REASON_KEPT)
