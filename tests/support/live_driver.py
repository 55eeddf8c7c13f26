"""A stand-in for the driver that samples while units still come, and keeps outcomes until they are acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from brimful.packing.units import Delivered, Failed, Recovered, Unit
from support.fake_driver import Answer, FakeDriver, Killed


class LiveDriver(FakeDriver):
    """``answer`` as a FakeDriver's. ``stored`` outlives it: what a killed submitter did not acknowledge, the next one's
    ``recover`` finds there."""

    def __init__(
        self,
        answer: Answer = lambda unit, prompt, choice: f"{unit.id}/{prompt}/{choice}",
        *,
        stored: list[Delivered] | None = None,
        die_after: int | None = None,
        at_once: int = 4,
        prompt_tokens: int = 4,
    ) -> None:
        """``die_after``: so many deliveries."""
        super().__init__(answer, prompt_tokens=lambda unit: prompt_tokens)
        self.stored = [] if stored is None else stored
        self.sync: Callable[[], Awaitable[bool]] | None = None
        self._dies_after = die_after
        self._at_once = at_once
        self.in_flight: list[Unit] = []
        self._written: list[Delivered | Failed] = []

    async def recover(self) -> Recovered:
        self._written += self.stored
        return Recovered(list(self.stored), frozenset())

    async def deliveries(
        self, units: AsyncIterator[Unit], *, total: int | None
    ) -> AsyncIterator[list[Delivered | Failed]]:
        ended: asyncio.Queue[list[Delivered | Failed] | BaseException | None] = asyncio.Queue()
        tasks = [asyncio.create_task(self._feed(units, ended))]
        delivered = 0
        try:
            await self._acknowledge()
            while (batch := await ended.get()) is not None:
                if isinstance(batch, BaseException):
                    raise batch
                yield batch
                self._written += batch
                delivered += 1
                if delivered % 3 == 0 and len(tasks) < 2:
                    tasks.append(asyncio.create_task(self._acknowledge()))
                    tasks[-1].add_done_callback(tasks.remove)
                if delivered == self._dies_after:
                    raise Killed
            await self._acknowledge()
        finally:
            for task in tasks:
                task.cancel()

    async def _feed(
        self, units: AsyncIterator[Unit], ended: asyncio.Queue[list[Delivered | Failed] | BaseException | None]
    ) -> None:
        places = asyncio.Semaphore(self._at_once)
        samples: set[asyncio.Task[None]] = set()

        async def sample(unit: Unit) -> None:
            await asyncio.sleep(0)
            items = self._ended(unit)
            self.in_flight.remove(unit)
            self.stored += [item for item in items if isinstance(item, Delivered)]
            ended.put_nowait(items)
            places.release()

        def begin(unit: Unit) -> None:
            task = asyncio.create_task(sample(unit))
            samples.add(task)
            task.add_done_callback(samples.discard)

        try:
            for unit in self.in_flight:
                begin(unit)
            async for unit in units:
                self.asked.append(unit)
                await places.acquire()
                if self._stopped is not None:
                    break
                self.in_flight.append(unit)
                begin(unit)
        except Exception as error:
            ended.put_nowait(error)
        while samples:
            await asyncio.wait(samples)
        ended.put_nowait(None)

    async def stop(self, *, drain: bool) -> None:
        await super().stop(drain=drain)

    async def _acknowledge(self) -> None:
        """Forget what the consumer had written when it was asked."""
        written, self._written = self._written, []
        if self.sync is None or await self.sync():
            self.stored[:] = [item for item in self.stored if not any(item is each for each in written)]
        else:
            self._written = written + self._written
