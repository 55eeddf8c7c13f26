"""Notices that a hook fails on one rollout after the other at the same place, and holds these rollouts meanwhile.

They are recorded as failed once another call has ended otherwise. If none does, the run stops, nothing of them is
recorded, and the same command judges them again: what was sampled is not paid for twice because of a faulty hook.
"""

from __future__ import annotations

import asyncio

from brimful.run.checks.verdict import Broken, Verdict

MOST = 20


class Streak:
    def __init__(self, most: int | None = MOST) -> None:
        """``most``: faults after which the streak is too long; None = never."""
        self._most = most
        self._count = 0
        self._last: Broken | None = None
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def too_long(self) -> Broken | None:
        """The newest fault, if there are too many."""
        return self._last if self._most is not None and self._count >= self._most else None

    def add(self, verdict: Verdict) -> None:
        """A call has ended. Once the streak is too long, it stays so."""
        if self.too_long is not None:
            return
        if isinstance(verdict, Broken) and (self._last is None or self._last.kind == verdict.kind):
            self._count += 1
            self._last = verdict
        else:
            self.release()
            self._count, self._last = int(isinstance(verdict, Broken)), verdict if isinstance(verdict, Broken) else None

    def hold(self) -> asyncio.Future[None]:
        """Done once a call has ended otherwise, or :meth:`release` is called; at once where there is no streak."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._last is None or self._most is None:
            future.set_result(None)
        else:
            self._waiting.append(future)
        return future

    def release(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)
