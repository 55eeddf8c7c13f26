"""Runs a storm over the limits: faults at their times, then the calm, then the audit."""

from __future__ import annotations

import asyncio
import contextlib
import random
import tempfile
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import redis

from brimful.errors import UsageError
from support.ledger import Ledger
from support.limits_storm import schedule
from support.limits_storm.audit import InForce, Limits, broken, most_in_window
from support.limits_storm.processes import DEFAULTS, MOST, WINDOW_S, Processes
from support.limits_storm.server import Server
from support.storm.machines import say
from support.storm.schedule import Event
from support.waiting import wait_until_async

SLOTS, STARTS, LEASES_S = (6, 10, 16), (30, 60, 60, 0), (3.0, 4.0, 4.0, 6.0)
"""What the operator chooses from."""
FIRST = Limits(slots=16, starts=60)
_STALLED_S = 0.15
_BEFORE_S = 10.0
"""How far before a finding its faults are told."""
_CALM_S = 60.0
_LOSSES = ("kill redis", "flush", "lose keys", "stale replica")


class Storm:
    def __init__(self, seed: int, seconds: float, *, skip: Sequence[str] = ()) -> None:
        self._seed, self._seconds = seed, seconds
        self._faults = [event for event in schedule.draw(seed, seconds) if event.kind not in skip]
        self._directory = Path(tempfile.mkdtemp(prefix=f"limits-storm-{seed}-"))
        self._server = Server(self._directory, appendonly=random.Random(seed).random() < 0.3)
        self._thread = ThreadPoolExecutor(1)
        """Of the server: it ends with the thread that has started it."""
        self._in_force = InForce(DEFAULTS)
        self._done: list[tuple[float, Event]] = []
        self._operator = asyncio.Lock()
        self._stalls: list[tuple[float, float]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self.findings: list[str] = []

    async def run(self) -> list[str]:
        """The findings; empty if every limit was kept and work flows afterwards."""
        say(f"limits storm: seed {self._seed}, {self._seconds:g} s, {len(self._faults)} faults; {self._directory}")
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(32))  # each process that has yet to join keeps a thread
        running = self._server.running()
        await loop.run_in_executor(self._thread, running.__enter__)
        try:
            async with Ledger() as ledger:
                self._ledger = ledger
                self._processes = Processes(self._directory, ledger.port, lambda: self._server.port)
                watching = asyncio.create_task(self._watch_loop())
                try:
                    await self._blow()
                    await self._settle()
                finally:
                    killed = sum(process.killed for process in self._processes.all)
                    watching.cancel()
                    await self._processes.end()
                self.findings += self._processes.findings + self._processes.tracebacks()
                self._audit(killed)
        finally:
            await loop.run_in_executor(self._thread, running.__exit__, None, None, None)
            self._thread.shutdown()
        return self.findings

    async def _watch_loop(self) -> None:
        """Note when the ledger itself stood still: what it counted then may be in another order."""
        before = time.monotonic()
        while True:
            await asyncio.sleep(0.02)
            now = time.monotonic()
            if now - before > 0.02 + _STALLED_S:
                self._stalls.append((before, now))
            before = now

    async def _blow(self) -> None:
        for number in (3, 1, 2):
            await self._processes.add(number)
        await wait_until_async(lambda: any(process.ready for process in self._processes.all), "one is ready", 60)
        await self._set_limits(FIRST, 4.0)
        begin = time.monotonic()
        for event in self._faults:
            await asyncio.sleep(max(0.0, begin + event.at - time.monotonic()))
            self._done.append((time.monotonic(), event))
            self._start(self._apply(event))
            self._processes.look()
        await asyncio.sleep(max(0.0, begin + self._seconds - time.monotonic()))

    def _start(self, doing: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(asyncio.create_task(doing))

    async def _apply(self, event: Event) -> None:
        loop = asyncio.get_running_loop()
        if event.kind in schedule.SERVER:
            if event.kind in _LOSSES:
                self._in_force.memory_lost(time.monotonic())
            if await loop.run_in_executor(self._thread, self._server.apply, event):
                self._processes.retarget()
            if event.kind in _LOSSES:
                self._in_force.memory_lost(time.monotonic())
        elif event.kind.startswith("step the clock"):
            with contextlib.suppress(redis.RedisError):
                await asyncio.to_thread(self._server.step_clock, event)
            if event.kind.endswith("newcomer"):
                await self._newcomer(event.number)
        elif event.kind == "limits":
            dice = random.Random(event.number)
            await self._set_limits(Limits(dice.choice(SLOTS), dice.choice(STARTS)), dice.choice(LEASES_S))
        elif event.kind == "newcomer":
            await self._newcomer(event.number)
        else:
            end = self._processes.apply(event)
            if event.kind == "kill and replace":
                await self._newcomer(event.number)
            if end is not None:
                await asyncio.sleep(event.lasts)
                end()

    async def _newcomer(self, number: int) -> None:
        if len(self._processes.live()) < MOST:
            await self._processes.add(number)

    async def _set_limits(self, limits: Limits, lease_s: float) -> None:
        async with self._operator:  # of two changes at the same time nobody knew which is in force
            began, port = time.monotonic(), self._server.port
            try:
                await asyncio.to_thread(self._server.set_limits, limits, lease_s)
            except UsageError:
                return  # too short a lease for a process that is far away
            except redis.RedisError:
                self._in_force.change(began, time.monotonic(), limits, sure=False)
                return
            # The answer may be that of a server which was replaced meanwhile.
            self._in_force.change(began, time.monotonic(), limits, sure=self._server.port == port)

    async def _settle(self) -> None:
        """All faults end, and each process must get something to do again."""
        await asyncio.gather(*self._tasks)
        self._processes.calm()
        await self._set_limits(FIRST, 4.0)
        since = time.monotonic()
        try:
            await wait_until_async(lambda: self._idle(since) == [], "each process starts something", _CALM_S)
        except AssertionError:
            self.findings.append(f"{_CALM_S:g} s after the storm, these have started nothing: {self._idle(since)}")
        self._processes.look()

    def _idle(self, since: float) -> list[str]:
        started = {visit.process for visit in self._ledger.since(since)}
        return [process.name for process in self._processes.live() if process.name not in started]

    def _audit(self, killed: int) -> None:
        visits = self._ledger.visits
        for visit, excess in broken(visits, self._in_force, WINDOW_S):
            near = [(begin, end) for begin, end in self._stalls if visit.arrived - 0.5 < end and begin < visit.arrived]
            stalled = [end - begin for begin, end in near]
            if "active" in excess and stalled:
                say(f"unclear, as the ledger stood still for {max(stalled):.2f} s: {excess}")
                continue
            before = [
                f"{at - visit.sent:.2f} s {event.kind}" + (f" for {event.lasts:g} s" if event.lasts else "")
                for at, event in self._done
                if visit.sent - _BEFORE_S < at <= visit.arrived
            ]
            self.findings.append(f"{excess}, by {visit.process}; before it: {', '.join(before)}")
        kinds = Counter(event.kind for _, event in self._done)
        say(
            f"limits storm: seed {self._seed}: {len(visits)} starts, at most {self._ledger.most_active} active and "
            f"{most_in_window(visits, self._in_force, WINDOW_S)} in {WINDOW_S:g} s while starts were limited; "
            f"{len(self._processes.all)} processes, {killed} killed; "
            + ", ".join(f"{count} × {kind}" for kind, count in kinds.most_common())
        )
