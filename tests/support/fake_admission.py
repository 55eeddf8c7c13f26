"""A fake of ``Admission``: the same methods, one process, no Redis; tests can read and manipulate it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from brimful_worker.admission import LeaseLost, StaleGrant


@dataclass
class FakeLease:
    waited_s: float = 0.0
    wire_deadline: float = float("inf")
    lost: bool = False
    deaths: int = 0
    stale: bool = False
    given_back: bool = False
    cooldown_s: float | None = 0.0
    refused: int | None = None
    stated_starts: int = 0
    sent_at: float | None = None
    transport: asyncio.Transport | None = None
    reports: list[dict[str, Any]] = field(default_factory=list)

    def sent(self) -> None:
        if self.stale or time.monotonic() >= self.wire_deadline:
            raise StaleGrant("too late")
        assert self.sent_at is None, "one start, sent twice"
        self.sent_at = time.monotonic()

    def give_back(self) -> None:
        self.given_back = True

    def forget_deaths(self) -> None:
        self.deaths = 0

    def watch(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def unwatch(self) -> None:
        pass

    def report(
        self,
        *,
        ok: bool | None,
        tokens_used: int | None = None,
        cooldown_s: float | None = None,
        refused: int | None = None,
        stated_starts: int = 0,
    ) -> None:
        self.reports.append({"ok": ok, "tokens_used": tokens_used})
        self.refused, self.stated_starts = refused, stated_starts
        self.cooldown_s = cooldown_s


@dataclass
class FakeStatus:
    slots_used: int
    cooling: int = 0


class FakeAdmission:
    """``slots`` at once, no window. ``grants`` are all leases so far, ``pauses`` all pauses asked for."""

    def __init__(self, slots: int = 16, *, obey_pauses: bool = False, stale: int = 0, elsewhere: int = 0) -> None:
        self.free = asyncio.Semaphore(slots)
        self.grants: list[FakeLease] = []
        self.workloads: list[str] = []
        self.tokens: list[int] = []
        self.pauses: list[tuple[float, str]] = []
        self.until_accepted: list[bool] = []
        """Of each pause, whether an accepted request ends it."""
        self.active = 0
        self.stale = stale
        self.elsewhere = elsewhere
        self._until = 0.0
        self._obey = obey_pauses

    @asynccontextmanager
    async def slot(
        self,
        workload: Any = "batch",
        *,
        tokens: int = 0,
        flow: Any = None,
        name: str = "",
        since: float | None = None,
    ) -> AsyncIterator[FakeLease]:
        asked = time.monotonic()
        async with self.free:
            while self._obey and (left := self._until - time.monotonic()) > 0:  # noqa: ASYNC110
                await asyncio.sleep(left)
            lease = FakeLease(waited_s=time.monotonic() - asked, stale=self.stale > 0)
            self.stale -= 1
            self.made(lease)
            self.grants.append(lease)
            self.workloads.append(str(workload))
            self.tokens.append(tokens)
            self.active += 1
            try:
                yield lease
            except asyncio.CancelledError:
                if lease.lost and (task := asyncio.current_task()) is not None:
                    task.uncancel()
                    raise LeaseLost("the slot's lease was lost") from None
                raise
            finally:
                self.active -= 1

    @asynccontextmanager
    async def start_only(self) -> AsyncIterator[FakeLease]:
        lease = FakeLease()
        self.grants.append(lease)
        yield lease

    def made(self, lease: FakeLease) -> None:
        """Called with each lease before it is granted."""

    def lose(self, task: asyncio.Task[Any]) -> None:
        """Lose the first lease, and cancel its task as the real admission does."""
        self.grants[0].lost = True
        task.cancel()

    async def pause(self, seconds: float, reason: str, *, until_accepted: bool = False) -> None:
        self.pauses.append((seconds, reason))
        self.until_accepted.append(until_accepted)
        self._until = max(self._until, time.monotonic() + seconds)

    async def status(self) -> FakeStatus:
        return FakeStatus(self.active + self.elsewhere)

    @property
    def sent(self) -> int:
        """Grants that reached the wire."""
        return sum(lease.sent_at is not None for lease in self.grants)
