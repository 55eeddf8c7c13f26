"""A minimal gateway without limits that records when requests arrive and how many are active, on its own clock.

A request is one line, ``<process> <seconds> <sent>``, on a new or a reused connection; the answer comes after that many
seconds. A request is active from the arrival of its line until its answer, or until its connection closes.

``sent`` is on time.monotonic() of this machine and may be missing. A window counts by it, so that a machine that is too
busy for the gateway brings no start into another window.
"""

from __future__ import annotations

import asyncio
import bisect
import random
import time
from dataclasses import dataclass


@dataclass
class Visit:
    process: str
    arrived: float
    sent: float
    """``arrived`` if its process does not say it."""
    active: int
    """Requests that were active then, with this one."""
    ended: float | None = None
    answered: bool = False


class Ledger:
    """``async with Ledger() as ledger``; ``jitter_s``: the most by which an arrival is delayed."""

    def __init__(self, jitter_s: float = 0.0) -> None:
        self.visits: list[Visit] = []
        self.port = 0
        self.jitter_s = jitter_s
        self.most_active = 0
        self.active = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Ledger:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while line := await reader.readline():
                if self.jitter_s:
                    await asyncio.sleep(random.random() * self.jitter_s)
                process, seconds, *sent = line.split()
                self.active += 1
                arrived = time.monotonic()
                visit = Visit(process.decode(), arrived, float(sent[0]) if sent else arrived, self.active)
                self.visits.append(visit)
                self.most_active = max(self.most_active, self.active)
                closing = asyncio.ensure_future(reader.read(1))
                done, _ = await asyncio.wait({closing}, timeout=float(seconds))
                visit.ended = time.monotonic()
                self.active -= 1
                if done:
                    return
                visit.answered = True
                closing.cancel()
                await asyncio.gather(closing, return_exceptions=True)
                writer.write(b"done\n")
        except (ConnectionError, asyncio.CancelledError):
            return
        finally:
            self._tasks.discard(task)
            writer.close()

    def most_in_window(self, window_s: float) -> int:
        """The most requests that were sent in any half-open window of this length; that arrived, if there is jitter."""
        times = sorted(visit.arrived if self.jitter_s else visit.sent for visit in self.visits)
        return max((bisect.bisect_left(times, at + window_s) - i for i, at in enumerate(times)), default=0)

    def since(self, at: float) -> list[Visit]:
        """Visits that arrived after a time on time.monotonic()."""
        return [visit for visit in self.visits if visit.arrived > at]
