"""``OUT.run.json``: which run an output belongs to, what it was asked with, and what became of each try."""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from brimful.errors import UsageError
from brimful.runtime.atomic import atomic_write

_VERSION = 1
_TRIES = 50  # kept


@dataclass
class Sidecar:
    """Small, written at the start and at the end of a try."""

    run: str
    parameters: dict[str, Any]
    limits: dict[str, Any] = field(default_factory=dict)
    """slots, starts, window_s; for the report."""
    bad_lines: list[list[int]] = field(default_factory=list)
    """Ranges of lines that no request could be made of: correcting them is no change of the input."""
    tries: list[dict[str, Any]] = field(default_factory=list)
    """started, ended (Unix times), exit, and the summary."""

    @classmethod
    def new(cls, parameters: dict[str, Any]) -> Sidecar:
        return cls(secrets.token_hex(8), parameters)

    @classmethod
    def load(cls, path: Path) -> Sidecar | None:
        """None when there is none. Raises UsageError when it can't be read."""
        try:
            raw = json.loads(path.read_text("utf-8"))
            if raw.pop("version") != _VERSION:
                raise ValueError("another version")
            found = cls(**raw)
            found._check()
            return found
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise UsageError(
                f"{path}: cannot be read ({error}); remove it to resume from the output, or use --fresh"
            ) from None

    def _check(self) -> None:
        """Somebody may have edited it. Raises TypeError."""
        for name, kind in (("run", str), ("parameters", dict), ("limits", dict), ("bad_lines", list), ("tries", list)):
            if not isinstance(getattr(self, name), kind):
                raise TypeError(f"its {name} is no {kind.__name__}")
        numbers = [value for value in self.limits.values() if value is not None]
        ranges = [line for pair in self.bad_lines for line in (pair if len(pair) == 2 else [None])]
        if not all(isinstance(value, int | float) for value in numbers + ranges):
            raise TypeError("its limits or bad_lines are no numbers")
        if not all(isinstance(each, dict) for each in self.tries):
            raise TypeError("its tries are no objects")

    def store(self, path: Path) -> None:
        """Atomic. Raises FleetError."""
        self.tries = self.tries[-_TRIES:]
        with atomic_write(path) as file:
            file.write(json.dumps({"version": _VERSION, **asdict(self)}, indent=1).encode() + b"\n")

    def changes(self, parameters: dict[str, Any]) -> list[str]:
        """What is asked differently now, in words."""
        names = [*parameters, *(name for name in self.parameters if name not in parameters)]
        return [
            f"{name} was {_say(self.parameters.get(name))} and is {_say(parameters.get(name))}"
            for name in names
            if self.parameters.get(name) != parameters.get(name)
        ]


def _say(value: Any) -> str:
    text = "not set" if value is None else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "…"


class Ranges:
    """Collects rising line numbers as ``[first, last]`` ranges."""

    def __init__(self, ranges: list[list[int]] | None = None) -> None:
        self.ranges = [list(each) for each in ranges or []]

    def add(self, line: int) -> None:
        if self.ranges and self.ranges[-1][1] == line - 1:
            self.ranges[-1][1] = line
        elif not self.ranges or self.ranges[-1][1] < line:
            self.ranges.append([line, line])

    def __contains__(self, line: int) -> bool:
        low, high = 0, len(self.ranges)
        while low < high:
            middle = (low + high) // 2
            if self.ranges[middle][1] < line:
                low = middle + 1
            else:
                high = middle
        return low < len(self.ranges) and self.ranges[low][0] <= line
