"""A caller's limit of requests a minute, exact over all front doors: one command a request of callers that have one."""

from __future__ import annotations

import math
from importlib import resources

from brimful.state.callers.tokens import CallerRecord
from brimful.state.keys import caller_starts_key
from brimful.state.redis_retry import REDIS_ERRORS
from brimful_worker.serve.refusals import Refusal, redis_away
from brimful_worker.singles.pipeline import SharedPipeline

_START = resources.files("brimful_worker.serve.callers").joinpath("start.lua").read_text("utf-8")


async def count_start(pipeline: SharedPipeline, fleet: str, caller: CallerRecord | None, request: str) -> None:
    """``request``: its id. Raises Refusal: 429 with Retry-After above the limit, 503 without Redis."""
    if caller is None or not caller.starts:
        return
    try:
        wait_ms = await pipeline.ask("EVAL", _START, 1, caller_starts_key(fleet, caller.name), request, caller.starts)
    except REDIS_ERRORS:
        raise redis_away() from None
    if wait_ms:
        seconds = math.ceil(wait_ms / 1000)
        message = f"caller {caller.name} may send {caller.starts:,} requests a minute; the next one in {seconds} s"
        raise Refusal(429, message, "rate_limit_exceeded", headers={"Retry-After": str(seconds)})
