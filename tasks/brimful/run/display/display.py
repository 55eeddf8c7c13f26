"""A run's displays on stderr: messages only, or a plain line of figures every ten seconds as well."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from brimful.run.display.forecast import Forecast
from brimful.run.display.progress import Progress, ReadStatus, plain_line
from brimful.run.display.summary import Summary

PLAIN_S = 10.0
"""Seconds between two plain lines."""


class Display:
    """Prints messages and the end table: ``--no-progress``, and the base of the other displays."""

    every_s = 1.0
    """Seconds between two calls of :meth:`show`."""

    def __init__(self, *, table: bool = True) -> None:
        """``table`` False: without the end table."""
        self._table = table

    def say(self, text: str) -> None:
        """Print a line that stays."""
        print(f"brimful: {text}", file=sys.stderr, flush=True)

    async def show(self, progress: Progress) -> None:
        """Show the figures."""

    def end(self, summary: Summary) -> None:
        """Print the end table."""
        if self._table:
            print(plain_table(summary.rows()), file=sys.stderr, flush=True)

    def close(self) -> None: ...

    def abandon(self) -> None:
        """Leave the terminal usable; called from another thread just before the process ends at once."""


class PlainDisplay(Display):
    """Where stderr is not a terminal: a line of figures every :data:`PLAIN_S` seconds."""

    def __init__(self, fleet: ReadStatus, *, table: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(table=table)
        self._fleet = fleet
        self._clock = clock
        self._forecast = Forecast()
        self._began = False
        self._next = clock() + PLAIN_S / 5  # a first line soon, as a sign of life

    async def show(self, progress: Progress) -> None:
        if not self._began:
            self._began = True
            self._forecast.update(progress)
        if self._clock() < self._next:
            return
        self._next = self._clock() + PLAIN_S
        fleet = await self._fleet()
        self.say(plain_line(progress, fleet, *self._forecast.update(progress, fleet)))


def plain_table(rows: list[tuple[str, str]]) -> str:
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"  {label.ljust(width)}  {value}" for label, value in rows)
