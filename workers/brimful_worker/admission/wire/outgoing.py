"""What the next command to Redis carries: local_state fills it, the coordinator sends it."""

from __future__ import annotations

import math
import os
import socket
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import Any

from brimful.runtime.json_bytes import encode
from brimful_worker.admission.lease import Lease
from brimful_worker.admission.policy import GATHER_SHARE
from brimful_worker.liveness.boot_time import boot_time

_HOST = socket.gethostname()
_VERSION = version("brimful")


_HELD_MOST_S, _HELD_FULL_S = 0.02, 0.1
"""For how long a release may wait for another command; the second while the window is full and no slot is needed."""
_GATHER_MOST_S = 0.005
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
    busy: tuple[int, str] | None = None
    """The same of a pause that ends with the first accepted request."""
    stated_starts: int = 0
    """Starts a minute that the provider states; 0 = nothing to send."""
    urgent: bool = False
    """Whether to send the next command at once."""
    due: float = math.inf
    """On ``boot_time()``: when the next command is sent at the latest."""
    idle: bool = False
    """Nobody in the fleet waits, and half of the slots are free, as far as this process knows."""
    full_until: float = 0.0
    """On ``boot_time()``: nothing can start before, since the window is full."""
    lasting_s: float = 0.0
    """From a request's start to its end, on average of the latest; stays when the content is taken."""
    _taken_until: dict[str, float] = field(default_factory=dict)
    """Ticket of a release that waits → when its slot's cooldown ends, on ``boot_time()``."""
    _stated: tuple[int, float] = (0, 0.0)
    """The last such limit that was sent, and when (``boot_time()``)."""

    def __bool__(self) -> bool:
        return bool(self.renames or self.cancels or self.pause or self.busy or self.urgent)

    def take(self) -> Outgoing:
        """Move the content to a new object."""
        now = boot_time()
        for release in self.releases:
            if (until := self._taken_until.get(release[0])) is not None:
                release[1] = max(0, math.ceil((until - now) * 1000))
        taken = replace(self)
        self.releases, self.answers, self.renames, self.cancels = [], {}, [], []
        self.pause, self.busy = None, None
        self.stated_starts, self.urgent, self.due, self._taken_until = 0, False, math.inf, {}
        return taken

    def release(self, ticket: str, cooldown_s: float, *report: Any, may_wait: bool = False) -> bool:
        """Add a release. ``report``: the elements after the cooldown. ``may_wait``: it brings nothing but a free slot.

        It is sent at once, unless its slot serves nobody before it can go along with another command: during a short
        cooldown, while the window is full, or while half of the slots are free. Returns whether a command must be sent
        sooner than before.
        """
        self.releases.append([ticket, math.ceil(cooldown_s * 1000), *report])
        if not may_wait or cooldown_s > _HELD_MOST_S:
            self.urgent = True
            return True
        now = boot_time()
        idle_s = _HELD_MOST_S if self.idle else 0.0
        if self.full_until > now + idle_s:
            idle_s = min(self.full_until - now, _HELD_FULL_S)
        if cooldown_s <= 0 and idle_s <= 0:
            self.urgent = True
            return True
        self._taken_until[ticket] = now + cooldown_s
        gathering_s = min(GATHER_SHARE * self.lasting_s, _GATHER_MOST_S)  # for those that end a moment later
        due, self.due = self.due, min(self.due, now + max(idle_s, cooldown_s + gathering_s))
        return self.due < due

    def note_answer(self, lease: Lease, learning: bool) -> None:
        """Whether a released lease's request was refused, for the learners of the limits, and how long it took."""
        took_s = boot_time() - lease.sent_at if lease.sent_at else 0.0
        if took_s:
            self.lasting_s += _LATEST * (took_s - self.lasting_s)
        if lease.refused is not None or (learning and lease.ok):
            self.answers[lease.id] = [lease.granted_ms, lease.refused or 0, round(1000 * took_s), lease.size]

    def note_stated(self, starts: int) -> None:
        """The provider states so many starts a minute. Sent where that is new, or was not sent for a while."""
        if starts and (starts != self._stated[0] or boot_time() > self._stated[1] + _STATED_EVERY_S):
            self._stated = starts, boot_time()
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
            "busy": self.busy,
        }

    def put_back(self, taken: Outgoing) -> None:
        self.releases = taken.releases + self.releases
        self.urgent = self.urgent or bool(taken.releases)
        self.answers = taken.answers | self.answers
        self.stated_starts = self.stated_starts or taken.stated_starts
        self.renames = taken.renames + self.renames
        self.cancels = taken.cancels + self.cancels
        self.add_pause(taken.pause)
        self.add_busy(taken.busy)

    def add_pause(self, pause: tuple[int, str] | None) -> None:
        if pause is not None and (self.pause is None or pause[0] > self.pause[0]):
            self.pause = pause

    def add_busy(self, busy: tuple[int, str] | None) -> None:
        if busy is not None and (self.busy is None or busy[0] > self.busy[0]):
            self.busy = busy


def describe_process(name: str, fleet: str | None, places: int | None, **numbers: int) -> str:
    """JSON text that ``status`` shows.

    ``fleet``: None if it is no worker. ``places``: tasks that it runs at once. ``numbers``: waiters of each workload
    that Redis does not know, and how far away Redis is.
    """
    process = {"name": name, "fleet": fleet, "host": _HOST, "pid": os.getpid(), "version": _VERSION, "places": places}
    return encode(process | numbers).decode()
