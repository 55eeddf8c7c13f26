"""One finding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing to do."""
    WARN = "warn"
    """It works, and could be better or be at risk."""
    FAIL = "fail"
    """It will not work."""


@dataclass(frozen=True, slots=True)
class Check:
    """``said`` is what was found, ``todo`` what to do about it; neither holds the key or a password."""

    name: str
    level: Level
    said: str
    todo: str = ""


def failed(checks: Iterable[Check]) -> bool:
    return any(check.level is Level.FAIL for check in checks)
