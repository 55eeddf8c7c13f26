"""What the next command carries; apart, since local_state fills it and the coordinator sends it."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from brimful.runtime.json_bytes import encode

_HOST = socket.gethostname()
_VERSION = version("brimful")


@dataclass(slots=True)
class Outgoing:
    """Taken whole, and put back whole when the command was not carried out."""

    releases: list[list[Any]] = field(default_factory=list)
    """[ticket, cooldown in ms, 1 ok / 0 failed / -1 neutral, used tokens or -1, 1 = undo the start], and the name of
    its request where the ticket has another, and 1 where its deaths are forgotten"""
    renames: list[list[str]] = field(default_factory=list)
    """[ticket, name of the request that has its grant]"""
    cancels: list[str] = field(default_factory=list)
    pause: tuple[int, str] | None = None
    """Milliseconds and reason; of several the longest."""
    urgent: bool = False
    """Whether to send the next command at once."""

    def __bool__(self) -> bool:
        return bool(self.releases or self.renames or self.cancels or self.pause or self.urgent)

    def take(self) -> Outgoing:
        """Move the content to a new object."""
        taken = Outgoing(self.releases, self.renames, self.cancels, self.pause, self.urgent)
        self.releases, self.renames, self.cancels, self.pause, self.urgent = [], [], [], None, False
        return taken

    def put_back(self, taken: Outgoing) -> None:
        self.releases = taken.releases + self.releases
        self.renames = taken.renames + self.renames
        self.cancels = taken.cancels + self.cancels
        self.add_pause(taken.pause)

    def add_pause(self, pause: tuple[int, str] | None) -> None:
        if pause is not None and (self.pause is None or pause[0] > self.pause[0]):
            self.pause = pause


def describe_process(name: str, fleet: str | None, places: int | None, **numbers: int) -> str:
    """JSON text that ``status`` shows.

    ``fleet``: None if it is no worker. ``places``: tasks that it runs at once. ``numbers``: waiters of each workload
    that Redis does not know, and how far away Redis is.
    """
    process = {"name": name, "fleet": fleet, "host": _HOST, "pid": os.getpid(), "version": _VERSION, "places": places}
    return encode(process | numbers).decode()
