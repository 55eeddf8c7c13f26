"""A caller's limits of requests and of tokens a minute, exact over all front doors.

They cost one command a request of callers that have one, and with a limit of tokens a second one when it has ended. Of
batches, a line is a request.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from brimful.state.callers.tokens import CallerRecord
from brimful.state.keys import caller_starts_key, caller_tokens_keys
from brimful.state.redis_retry import REDIS_ERRORS
from brimful_worker.lua_script import load_script
from brimful_worker.serve.callers.clock import CallersClock, timed_script
from brimful_worker.serve.refusals import NO_RETRY, Refusal, redis_away
from brimful_worker.singles.pipeline import SharedPipeline

_REQUEST = timed_script("window.lua", "minute.lua")
_LINES = timed_script("window.lua", "lines.lua")
_SETTLE = load_script("brimful_worker.serve.callers", "settle.lua")
_LEFT = 10
"""Batches leave one of so many requests and tokens a minute to their caller's single requests."""
_AT_ONCE = 2000
"""Arguments of one settle.lua."""


class Minutes:
    """Counts requests and tokens against their callers' limits of a minute, for one front door."""

    def __init__(self, fleet: str, clock: CallersClock) -> None:
        self._fleet = fleet
        self._clock = clock

    async def count(self, pipeline: SharedPipeline, caller: CallerRecord | None, request: str, tokens: int) -> None:
        """Count a request when it comes. ``request``: an id that its caller has not chosen. ``tokens``: the most that
        it may use.

        Raises Refusal: 429 with Retry-After above a limit, 503 without Redis.
        """
        if caller is None or not caller.minute_limited:
            return
        if 0 < caller.tokens_per_minute < tokens:
            message = (
                f"caller {caller.name} may use at most {caller.tokens_per_minute:,} tokens a minute, and this request "
                f"alone may use {tokens:,}: lower max_tokens or n, or shorten the prompt"
            )
            raise Refusal(429, message, "rate_limit_exceeded", headers=NO_RETRY)
        limits = caller.starts, caller.tokens_per_minute
        try:
            kind, *wait_ms = await self._clock.call(pipeline, _REQUEST, self._keys(caller), request, *limits, tokens)
        except REDIS_ERRORS:
            raise redis_away() from None
        if not kind:
            return
        seconds = math.ceil(wait_ms[0] / 1000)
        limit = f"{caller.starts:,} requests" if kind == 1 else f"{caller.tokens_per_minute:,} tokens"
        spent = "all of them were sent" if kind == 1 else f"fewer than the {tokens:,} of this request are left"
        message = f"caller {caller.name} is limited to {limit} a minute, and {spent}; try again in {seconds} s"
        raise Refusal(429, message, "rate_limit_exceeded", headers={"Retry-After": str(seconds)})

    async def count_lines(
        self, pipeline: SharedPipeline, caller: CallerRecord, batch: str, first: int, tokens: Sequence[int]
    ) -> int:
        """Count the next lines of a batch, from ``first`` on, as far as they fit now. ``tokens``: the most that each
        of them may use. Returns how many fit. Raises redis.RedisError."""
        limits = [limit - limit // _LEFT for limit in (caller.starts, caller.tokens_per_minute)]
        figures = first, *limits, json.dumps(list(tokens))
        counted: int = await self._clock.call(pipeline, _LINES, self._keys(caller), batch, *figures)
        return counted

    def settle(self, pipeline: SharedPipeline, caller: CallerRecord | None, used: Mapping[str, int]) -> None:
        """These requests have ended, and used so many tokens. Does not wait: without Redis, what they might have used
        stays counted. ``used``: by the request's id, of a batch by :func:`line_id`."""
        if caller is not None and caller.tokens_per_minute and used:
            amounts = [each for entry in used.items() for each in entry]
            for begin in range(0, len(amounts), _AT_ONCE):
                pipeline.call(_SETTLE, self._keys(caller)[2:], *amounts[begin : begin + _AT_ONCE])

    def _keys(self, caller: CallerRecord) -> tuple[str, str, str]:
        return caller_starts_key(self._fleet, caller.name), *caller_tokens_keys(self._fleet, caller.name)


def line_id(batch: str, line: int) -> str:
    return f"{batch}.{line}"
