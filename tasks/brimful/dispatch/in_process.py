"""A driver of maps that a test's backend answers: the interface of :class:`Driver`, without Redis and packing.

A class of its own, so that :class:`Driver` has no branch for tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Set
from typing import Any

from brimful.dispatch.intake import Units
from brimful.errors import RequestTooLarge
from brimful.outcome import Cause, Failure, Outcome
from brimful.packing.packing import PackedRequest, slices_of
from brimful.packing.units import Delivered, DriveStatus, Failed, Unit
from brimful.packing.unpacking import failed_lines, unpack
from brimful.profile import Profile
from brimful.runtime.aio import cancel_and_wait
from brimful.runtime.port import InProcess
from brimful.runtime.threads import read_in_thread

_AT_ONCE = 64


class InProcessDriver:
    """Each prompt of a unit is one request."""

    def __init__(self, backend: InProcess, profile: Profile) -> None:
        self._backend = backend
        self._profile = profile
        self._ended: asyncio.Queue[list[Delivered | Failed] | Exception | None] = asyncio.Queue(_AT_ONCE)
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._lines: dict[asyncio.Task[None], int] = {}
        self._cancelled: set[int] = set()

    async def deliveries(self, units: Units, *, total: int | None = None) -> AsyncIterator[list[Delivered | Failed]]:
        """As :meth:`Driver.deliveries`. Raises what ``units`` and the test's answer function raise."""
        self._start(self._feed(units))
        try:
            while (batch := await self._ended.get()) is not None:
                if isinstance(batch, Exception):
                    raise batch
                yield batch
        finally:
            await self.aclose()

    async def cancel(self, lines: Set[int]) -> None:
        """As :meth:`Driver.cancel`."""
        self._cancelled |= lines
        await cancel_and_wait([task for task, line in self._lines.items() if line in lines])

    def snapshot(self) -> DriveStatus:
        return DriveStatus()

    async def aclose(self) -> None:
        await cancel_and_wait(self._lines)

    def _start(self, part: Coroutine[Any, Any, None], line: int = 0) -> asyncio.Task[None]:
        task = asyncio.create_task(self._guarded(part))
        self._lines[task] = line
        task.add_done_callback(self._lines.pop)
        return task

    async def _guarded(self, part: Coroutine[Any, Any, None]) -> None:
        try:
            await part
        except Exception as error:
            await self._ended.put(error)

    async def _feed(self, units: Units) -> None:
        async for unit in units if isinstance(units, AsyncIterator) else read_in_thread(units):
            if isinstance(unit, Failed):
                await self._ended.put([unit])
            else:
                await self._begin(unit)
        for _ in range(_AT_ONCE):  # until nothing is in flight
            await self._room.acquire()
        await self._ended.put(None)

    async def _begin(self, unit: Unit) -> None:
        try:
            slices = list(slices_of(unit, self._profile))
        except RequestTooLarge as error:
            failure = Failure(Cause.BAD_REQUEST, str(error), permanent=True)
            request = unit.request
            wanted = tuple((p, choice) for p in range(request.prompt_count) for choice in range(request.n))
            failed = Failed(unit.line, unit.id, request, wanted, failure, Outcome(unit.id, failure=failure))
            await self._ended.put([failed])
            return
        for place, (pack_key, item) in enumerate(slices):
            await self._room.acquire()
            if unit.line in self._cancelled:
                self._room.release()
                return
            packed = PackedRequest(f"{unit.id}-{place}", pack_key, (item,))
            self._start(self._sample(packed), unit.line).add_done_callback(lambda _: self._room.release())

    async def _sample(self, packed: PackedRequest) -> None:
        asked = self._backend.start(self._backend.sample(packed.request.as_message(), {}))
        outcome: Outcome = await asyncio.wrap_future(asked)
        await self._ended.put([*(unpack(packed.manifest, outcome) if outcome.ok else failed_lines(packed, outcome))])
