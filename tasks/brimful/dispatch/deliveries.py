"""Records that wait for the driver's consumer, and how far the consumer has written them down."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from brimful.packing.units import Delivered, Failed

_READS = 2
_RECORDS = 4096


class Batch(NamedTuple):
    records: list[Delivered | Failed]
    entry: str
    """The entry of the results stream up to which the records go; "0" = none."""


class Deliveries:
    """``put`` by the parts of a driver, ``next`` by its consumer. Bounded by those who put: they await ``room`` first,
    and leave in Redis what a slow consumer has not come for."""

    def __init__(self) -> None:
        self.written = "0"
        """The entry of the results stream up to which the consumer has written everything down."""
        self._entry = "0"
        self._records: list[Delivered | Failed] = []
        self._reads = 0
        self._ended = False
        self._some = asyncio.Event()
        self._room = asyncio.Event()

    def begin_after(self, entry: str) -> None:
        """Everything up to ``entry`` was delivered before."""
        self.written = self._entry = entry

    def put(self, records: Iterable[Delivered | Failed], entry: str | None = None) -> None:
        self._records += records
        if entry is not None:
            self._entry = entry
            self._reads += 1
        self._some.set()

    async def room(self) -> None:
        """Wait until the consumer has taken enough."""
        while self._reads >= _READS or len(self._records) >= _RECORDS:
            self._room.clear()
            await self._room.wait()

    async def next(self) -> Batch | None:
        """All that waits, as soon as there is something; ``records`` may be empty. None: it has ended."""
        while not self._records and not self._reads:
            if self._ended:
                return None
            self._some.clear()
            await self._some.wait()
        records, self._records, self._reads = self._records, [], 0
        self._room.set()
        return Batch(records, self._entry)

    def end(self) -> None:
        """Nothing more will be put."""
        self._ended = True
        self._some.set()
