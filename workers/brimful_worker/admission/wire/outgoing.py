"""What a process has to say at its next turn. Taken whole, and put back whole when a turn was not carried out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Outbox:
    releases: list[list[Any]] = field(default_factory=list)
    """[ticket, cool-off in ms, 1 ok / 0 failed / -1 neutral, used tokens or -1, 1 = undo the start]"""
    cancels: list[str] = field(default_factory=list)
    pause: tuple[int, str] | None = None
    """ms and reason; of several the longest."""
    urgent: bool = False
    """Whether the next turn shall come at once."""

    def __bool__(self) -> bool:
        return bool(self.releases or self.cancels or self.pause or self.urgent)

    def take(self) -> Outbox:
        """The content, moved to a new box."""
        taken = Outbox(self.releases, self.cancels, self.pause, self.urgent)
        self.releases, self.cancels, self.pause, self.urgent = [], [], None, False
        return taken

    def put_back(self, taken: Outbox) -> None:
        self.releases = taken.releases + self.releases
        self.cancels = taken.cancels + self.cancels
        self.hold(taken.pause)

    def hold(self, pause: tuple[int, str] | None) -> None:
        if pause is not None and (self.pause is None or pause[0] > self.pause[0]):
            self.pause = pause
