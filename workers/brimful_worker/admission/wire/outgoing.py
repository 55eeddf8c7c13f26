"""What the next command carries; apart, since local_state fills it and the coordinator sends it."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any

from brimful.runtime.json_bytes import encode
from brimful_worker.admission.lease import Lease
from brimful_worker.liveness.boot_time import boot_time

_HOST = socket.gethostname()
_VERSION = version("brimful")


_LATEST = 1 / 32
"""Weight of the last request in :attr:`Outgoing.lasting_s`."""
_STATED_EVERY_S = 60.0
"""A limit that the provider states is sent when it changes, and this often."""


@dataclass(slots=True)
class Outgoing:
    """Taken whole, and put back whole when the command was not carried out."""

    releases: list[list[Any]] = field(default_factory=list)
    """[ticket, cooldown in ms, 1 ok / 0 failed / -1 neutral, used tokens or -1, 1 = undo the start], and the name of
    its request where the ticket has another, and 1 where its deaths are forgotten"""
    answers: dict[str, list[int]] = field(default_factory=dict)
    """Released ticket → when it was granted (Redis's clock, ms), the :class:`Refused` limit or 0, milliseconds from the
    wire to the end, and its size"""
    renames: list[list[str]] = field(default_factory=list)
    """[ticket, name of the request that has its grant]"""
    cancels: list[str] = field(default_factory=list)
    pause: tuple[int, str] | None = None
    """Milliseconds and reason; of several the longest."""
    stated_starts: int = 0
    """Starts a minute that the provider states; 0 = nothing to send."""
    urgent: bool = False
    """Whether to send the next command at once."""
    lasting_s: float = 0.0
    """From a request's start to its end, on average of the latest; stays when the content is taken."""
    _stated: tuple[int, float] = (0, 0.0)
    """The last such limit that was sent, and when (``boot_time()``)."""

    def __bool__(self) -> bool:
        return bool(self.releases or self.renames or self.cancels or self.pause or self.urgent)

    def take(self) -> Outgoing:
        """Move the content to a new object."""
        taken = replace(self)
        self.releases, self.answers, self.renames, self.cancels, self.pause = [], {}, [], [], None
        self.stated_starts, self.urgent = 0, False
        return taken

    def note_answer(self, lease: Lease, learning: bool) -> None:
        """Whether a released lease's request was refused, for the learners of the limits, and how long it took."""
        took_s = boot_time() - lease.sent_at if lease.sent_at else 0.0
        if took_s:
            self.lasting_s += _LATEST * (took_s - self.lasting_s)
        if lease.refused is not None or (learning and lease.ok):
            self.answers[lease.id] = [lease.granted_ms, lease.refused or 0, round(1000 * took_s), lease.size]

    def note_stated(self, starts: int) -> None:
        """The provider states so many starts a minute. Sent where that is new, or was not sent for a while."""
        now = boot_time()
        if starts and (starts != self._stated[0] or now > self._stated[1] + _STATED_EVERY_S):
            self._stated = starts, now
            self.stated_starts = starts

    def fields(self) -> dict[str, Any]:
        """Of the command."""
        return {
            "release": self.releases,
            "answers": self.answers,
            "stated_starts": self.stated_starts,
            "rename": self.renames,
            "cancel": self.cancels,
            "pause": self.pause,
        }

    def put_back(self, taken: Outgoing) -> None:
        self.releases = taken.releases + self.releases
        self.answers = taken.answers | self.answers
        self.stated_starts = self.stated_starts or taken.stated_starts
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
