"""A caller's limits of requests and of tokens a minute, exact over all front doors.

They cost one command a request of callers that have one, and with a limit of tokens a second one when it has ended.
"""

from __future__ import annotations

import math
from asyncio import Future
from importlib import resources

from brimful.state.callers.tokens import CallerRecord
from brimful.state.keys import caller_starts_key, caller_tokens_keys
from brimful.state.redis_retry import REDIS_ERRORS
from brimful_worker.serve.refusals import NO_RETRY, Refusal, redis_away
from brimful_worker.singles.pipeline import SharedPipeline

_SCRIPT = resources.files("brimful_worker.serve.callers").joinpath("minute.lua").read_text("utf-8")

_LINES = resources.files("brimful_worker.serve.callers").joinpath("lines.lua").read_text("utf-8")


async def count_in_minute(
    pipeline: SharedPipeline, fleet: str, caller: CallerRecord | None, request: str, tokens: int
) -> None:
    """``request``: its id. ``tokens``: the most that it may use.

    Raises Refusal: 429 with Retry-After above a limit, 503 without Redis.
    """
    if caller is None or not (caller.starts or caller.tokens_per_minute):
        return
    if 0 < caller.tokens_per_minute < tokens:
        most = f"{caller.tokens_per_minute:,} tokens a minute, and this request alone {tokens:,}: ask for fewer"
        raise Refusal(429, f"caller {caller.name} may use {most}", "rate_limit_exceeded", headers=NO_RETRY)
    try:
        kind, *wait_ms = await _ask(pipeline, fleet, caller, request, tokens)
    except REDIS_ERRORS:
        raise redis_away() from None
    if not kind:
        return
    seconds = math.ceil(wait_ms[0] / 1000)
    message = (
        f"caller {caller.name} may send {caller.starts:,} requests a minute; the next one in {seconds} s"
        if kind == 1
        else f"caller {caller.name} may use {caller.tokens_per_minute:,} tokens a minute; {tokens:,} in {seconds} s"
    )
    raise Refusal(429, message, "rate_limit_exceeded", headers={"Retry-After": str(seconds)})


def settle_in_minute(
    pipeline: SharedPipeline, fleet: str, caller: CallerRecord | None, request: str, tokens: int
) -> None:
    """The request has ended and used ``tokens``. Does not wait: without Redis, what it may have used stays counted."""
    if caller is not None and caller.tokens_per_minute:
        _ask(pipeline, fleet, caller, request, -1 - tokens)


def _ask(pipeline: SharedPipeline, fleet: str, caller: CallerRecord, request: str, tokens: int) -> Future[list[int]]:
    keys = caller_starts_key(fleet, caller.name), *caller_tokens_keys(fleet, caller.name)
    limits = caller.starts, caller.tokens_per_minute
    answer: Future[list[int]] = pipeline.ask("EVAL", _SCRIPT, 3, *keys, request, *limits, tokens)
    return answer


async def count_lines_in_minute(
    pipeline: SharedPipeline, fleet: str, caller: CallerRecord, name: str, lines: int, tokens: int
) -> None:
    """Count lines of a batch that are done. ``name``: of this step. Raises redis.RedisError."""
    if caller.starts or caller.tokens_per_minute:
        keys = caller_starts_key(fleet, caller.name), *caller_tokens_keys(fleet, caller.name)
        counted = min(lines, caller.starts), tokens if caller.tokens_per_minute else 0
        await pipeline.ask("EVAL", _LINES, 3, *keys, name, *counted)
