"""The clock of the callers' limits: Redis's, without its steps (clock.lua).

Failure mode: a front door that has not read it yet cannot tell a step forward from time that has passed. It reads the
clock twice a second while any caller has a limit, from its start on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.exceptions import ResponseError

from brimful.state.keys import callers_clock_key
from brimful_worker.admission.wire.redis_clock import RedisClock
from brimful_worker.liveness.boot_time import boot_time
from brimful_worker.lua_script import Script, load_script
from brimful_worker.singles.pipeline import SharedPipeline

_LATE = "LATE "
_SENDINGS = 3
"""How often a script that reaches Redis late is sent. The last sending holds the clock back, as after a step."""


def timed_script(*names: str) -> Script:
    """A script of this room that begins with clock.lua. For :meth:`CallersClock.call`."""
    return load_script("brimful_worker.serve.callers", "clock.lua", *names)


_READ = timed_script("now.lua")


class CallersClock:
    """One front door's readings of the clock, and the calls of scripts that use it."""

    def __init__(self, fleet: str, readings: RedisClock | None = None) -> None:
        """``readings``: what is known of Redis's clock so far."""
        self._key = callers_clock_key(fleet)
        self._readings = readings or RedisClock()
        self.now_s = 0.0
        """Seconds that the clock showed when it was last read; 0 before that."""

    async def read(self, pipeline: SharedPipeline) -> None:
        """Read the clock. Raises redis.RedisError."""
        sent = boot_time()
        now_ms = await self.call(pipeline, _READ, ())
        self._readings.note(sent, boot_time(), now_ms)
        self.now_s = now_ms / 1000

    async def call(self, pipeline: SharedPipeline, script: Script, keys: Sequence[str], *arguments: Any) -> Any:
        """The reply of a :func:`timed_script`. Raises redis.RedisError."""
        stepped, left = False, _SENDINGS
        while True:
            left -= 1
            bound = self._readings.bound_ms(boot_time(), stepped=stepped)
            figures = "" if bound is None else bound, int(stepped or not left)
            try:
                return await pipeline.call(script, (*keys, self._key), *arguments, *figures)
            except ResponseError as error:
                if not str(error).startswith(_LATE):
                    raise
                stepped = self._readings.stepped(boot_time(), int(str(error).removeprefix(_LATE)))
