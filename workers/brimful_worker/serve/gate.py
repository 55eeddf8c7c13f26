"""Lets requests in, and ends those that wait when nothing can be sent: Redis is away, or the process stops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Self

from brimful_worker.serve.refusals import NO_RETRY, Refusal, redis_away, unavailable

_LOOK_S = 0.2
_OPEN_LOOK_S = 0.5
"""While Redis answers."""
_AWAY_S = 1.0
"""Shorter absences of Redis are waited for."""


class Turn:
    """One request from its arrival to the end of its sampling. Entering and leaving it raise Refusal."""

    __slots__ = ("_clock", "_deadline_s", "_gate", "_refusal", "asked_by", "sent")

    def __init__(self, gate: Gate, deadline_s: float | None) -> None:
        """``deadline_s``: most seconds of waiting and sending."""
        self._gate = gate
        self._deadline_s = deadline_s
        self._refusal: Refusal | None = None
        self.asked_by: tuple[str, str] | None = None
        """Caller and workload of a request that is sampled."""
        self.sent = False
        """An attempt is on the wire."""

    async def __aenter__(self) -> Self:
        if self._gate.reason is not None:
            raise self._gate.reason()
        self._clock = asyncio.timeout(self._deadline_s)
        await self._clock.__aenter__()
        self._gate.turns.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gate.left(self)
        try:
            await self._clock.__aexit__(kind, error, trace)
        except TimeoutError:
            raise self._refusal or Refusal(
                504, f"no answer within the deadline of {self._deadline_s:g} s", "deadline_exceeded", headers=NO_RETRY
            ) from None

    def on_wire(self, now: bool) -> None:
        """For :meth:`Sampler.sample`."""
        self.sent = now
        if not now and self._gate.reason is not None:
            self.refuse(self._gate.reason())

    def refuse(self, refusal: Refusal) -> None:
        """End it as soon as the event loop can."""
        with contextlib.suppress(RuntimeError):  # its deadline has passed in this moment
            self._clock.reschedule(asyncio.get_running_loop().time())
            self._refusal = refusal


class Gate:
    """The gate of one front-door process. It is closed at first, until Redis has answered."""

    def __init__(self) -> None:
        self.turns: set[Turn] = set()
        self.draining = False
        self.reason: Callable[[], Refusal] | None = lambda: unavailable(
            "this server has not reached its Redis yet", "starting", 1
        )
        """Makes the refusal of requests that are not on the wire; None while the gate is open."""
        self._empty = asyncio.Event()

    def turn(self, deadline_s: float | None = None) -> Turn:
        return Turn(self, deadline_s)

    def close(self, reason: Callable[[], Refusal]) -> None:
        """Refuse all that come, and all that are not on the wire."""
        self.reason = reason
        for turn in [turn for turn in self.turns if not turn.sent]:
            turn.refuse(reason())

    async def drain(self, grace_s: float) -> None:
        """Let what is on the wire end within ``grace_s``, and nothing else."""
        self.draining = True
        self.close(lambda: unavailable("this server is shutting down", "shutting_down", 1))
        if not self.turns:
            return
        self._empty.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._empty.wait()

    async def watch(self, failure: Callable[[], Exception | None]) -> None:
        """Open while ``failure()``, which says why Redis does not answer, is None. Returns when the gate drains."""
        loop = asyncio.get_running_loop()
        since: float | None = None
        while not self.draining:
            if failure() is None:
                since, self.reason = None, None
            elif since is None:
                since = loop.time()
            elif loop.time() - since >= _AWAY_S and self.reason is None:
                self.close(redis_away)
            await asyncio.sleep(_LOOK_S if since is not None else _OPEN_LOOK_S)

    def left(self, turn: Turn) -> None:
        self.turns.discard(turn)
        if not self.turns:
            self._empty.set()
