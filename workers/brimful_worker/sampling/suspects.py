"""Requests that were on the wire when workers died: they are sampled alone, divided where possible, or set aside.

Each request on the wire at a death may have caused it (:attr:`Lease.deaths` counts); what waited is not suspected. A
request with two deaths is from then on the only one of its process on the wire, so a further death shows that it is the
cause, and counts for no other request. A pack is divided instead, until the prompt that kills workers stands alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from brimful.outcome import Cause
from brimful.words.counted import counted
from brimful_worker.provider.answers.answer import Classification, Kind

ALONE_AFTER = 2
"""Deaths after which a request is sampled alone, and a pack divided."""
MAX_DEATHS = 5
"""Deaths after which a request fails with cause ``worker_lost``; those of the pack from which it came count as two."""


@dataclass(slots=True)
class Suspicion:
    """The deaths of workers that count against one request, and what follows from them."""

    divided: bool = False
    """It is a part of a pack with which workers died."""
    divisible: bool = False
    """Its caller replaces it by smaller ones when it fails."""
    deaths: int = 0

    @property
    def alone(self) -> bool:
        """Whether it must be sampled alone."""
        return self._total >= ALONE_AFTER

    def learn(self, deaths: int) -> int:
        """Returns how many of the deaths were not known."""
        new, self.deaths = max(0, deaths - self.deaths), max(deaths, self.deaths)
        return new

    def verdict(self) -> Classification | None:
        """The failure that it ends with; None if it is to be sampled."""
        if self.divisible and self.deaths and self.alone:
            message = f"{counted(self.deaths, 'worker')} died while they sampled these prompts in one request"
        elif self._total >= MAX_DEATHS:
            message = f"{counted(self._total, 'worker')} died while they sampled it; it is not given to another"
        else:
            return None
        return Classification(Kind.PERMANENT, cause=Cause.WORKER_LOST, message=message)

    @property
    def _total(self) -> int:
        return self.deaths + (ALONE_AFTER if self.divided else 0)


class Isolation:
    """Lets a request be the only one of this process on the wire. The others wait meanwhile; other processes go on."""

    def __init__(self) -> None:
        self._on_wire = 0
        self._alone = asyncio.Lock()
        self._empty = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()

    async def wait(self) -> None:
        """Returns when a request may ask for a slot."""
        while not self._open.is_set():
            await self._open.wait()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Nothing else is on the wire inside; of several callers one after the other."""
        async with self._alone:
            self._open.clear()
            try:
                while self._on_wire:
                    self._empty.clear()
                    await self._empty.wait()
                yield
            finally:
                self._open.set()

    def enter(self, *, alone: bool) -> bool:
        """A request is about to be sent; :meth:`leave` follows. ``alone``: from within :meth:`alone`. Returns False if
        another one wants to be alone."""
        if not alone and not self._open.is_set():
            return False
        self._on_wire += 1
        return True

    def leave(self) -> None:
        self._on_wire -= 1
        if not self._on_wire:
            self._empty.set()
