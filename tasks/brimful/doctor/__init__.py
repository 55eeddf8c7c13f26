"""The checks of ``brimful doctor``. They only read, and spend no token and no start: the provider gets one GET.

Level 6. Imports ``state`` and the vocabulary; imported by ``cli``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing needs to be done."""
    WARN = "warn"
    """It works, but could be better or is at risk."""
    FAIL = "fail"
    """It will not work."""


@dataclass(frozen=True, slots=True)
class Check:
    """Neither text holds the API key or a password."""

    name: str
    level: Level
    said: str
    """What was found."""
    todo: str = ""
    """What to do about it."""
