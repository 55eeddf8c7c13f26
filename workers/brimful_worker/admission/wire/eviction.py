"""Watches whether the server may evict keys: each key of the admission that it drops is a loss of memory.

Failure mode: a process does not start on such a server. If the server is configured so later, the process pauses the
fleet until that is corrected, which it looks for every few seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from redis.exceptions import ResponseError

from brimful.state.probes import EVICTION_REMEDY, eviction_fault
from brimful_worker.liveness.boot_time import boot_time

log = logging.getLogger(__name__)


class EvictionWatch:
    """Reads the server's ``maxmemory-policy`` from time to time."""

    every_s = 60.0
    """Seconds from one look to the next."""
    again_s = 5.0
    """The same while the server may evict."""

    def __init__(self) -> None:
        self.fault: str | None = None
        """Why nothing may start, and what to do; None if the server evicts no keys, or does not report its policy."""
        self._next_at = 0.0
        self._unpaused = False
        self._said: str | None = None

    @property
    def due(self) -> bool:
        return boot_time() >= self._next_at

    async def look(self, call: Callable[..., Awaitable[Any]]) -> None:
        """Read the policy. ``call`` sends one command; what it raises is raised, except for error replies."""
        try:
            answer: bytes = await call("INFO", "memory")
        except ResponseError as error:
            answer = b""
            log.debug("admission: INFO memory: %s", error)
        lines = [line.partition(":") for line in answer.decode(errors="replace").splitlines()]
        info = {name: value for name, _, value in lines}
        said = "whether Redis may evict keys cannot be checked: it does not report its maxmemory-policy (INFO memory)"
        fault, evicts = eviction_fault(info) if "maxmemory_policy" in info else (said, False)
        before, self.fault = self.fault, f"Redis may evict keys: {fault}; {EVICTION_REMEDY}" if evicts else None
        self._unpaused = self.fault is not None
        self._next_at = boot_time() + (self.again_s if self.fault else self.every_s)
        if fault is not None and fault != self._said:
            level, rest = (logging.ERROR, "nothing starts until then") if evicts else (logging.WARNING, "")
            log.log(level, "admission: %s%s", self.fault or fault, f"; {rest}" if rest else "")
        elif before and not self.fault:
            log.warning("admission: Redis evicts no keys any more")
        self._said = fault

    def pause(self, idle_s: float) -> tuple[int, str] | None:
        """Milliseconds and reason of the pause that the last look demands, once. It lasts beyond the next look, for
        processes that send a command at least every ``idle_s`` seconds."""
        if not self._unpaused or self.fault is None:
            return None
        self._unpaused = False
        return round((2 * self.again_s + idle_s) * 1000), self.fault
