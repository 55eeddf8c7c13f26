"""Samples a request and counts it as its caller's; answers ``GET /usage``."""

from __future__ import annotations

from functools import partial

from aiohttp import web

from brimful.outcome import Outcome
from brimful.runtime import json_bytes
from brimful.state.redis_retry import REDIS_ERRORS
from brimful_worker.admission.turns import NO_FLOW, Flow
from brimful_worker.metrics import catalogue as metrics
from brimful_worker.sampling.exchange import Exchange
from brimful_worker.sampling.stats import cost_of
from brimful_worker.serve.caller import CALLER, PROVIDER_IDS, TOKENS_USED
from brimful_worker.serve.callers.usage import Account
from brimful_worker.serve.completions.reading import REQUEST_ID, CallerRequest
from brimful_worker.serve.front import FRONT
from brimful_worker.serve.gate import Turn
from brimful_worker.serve.refusals import Refusal, redis_away


async def sample_for_caller(http: web.Request, asked: CallerRequest, turn: Turn, exchange: Exchange) -> Outcome:
    """Raises Refusal if the caller is over a limit of its own."""
    front, caller = http.app[FRONT], http[CALLER]
    turn.asked_by = (caller.name, asked.request.workload.value)
    record, pipeline, account = caller.record, front.once.pipeline, Account()
    try:
        await front.minutes.count(pipeline, record, http[REQUEST_ID], asked.request.hold)
        await _sample(http, asked, turn, exchange, account)
    finally:  # also of a caller that has gone away while it was counted
        front.minutes.settle(pipeline, record, {http[REQUEST_ID]: account.tokens})
    assert account.outcome is not None
    front.recent.ended(caller.name, account.outcome)
    http[TOKENS_USED], http[PROVIDER_IDS] = account.tokens, account.outcome.provider_request_ids
    return account.outcome


async def _sample(http: web.Request, asked: CallerRequest, turn: Turn, exchange: Exchange, account: Account) -> None:
    front, record = http.app[FRONT], http[CALLER].record
    with front.usage.request(record, asked.request.hold, account):

        def on_wire(now: bool) -> None:
            account.sent |= now
            turn.on_wire(now)

        sample = partial(front.process.sampler.sample, asked.request, on_wire=on_wire, exchange=exchange)
        if record is None:
            account.outcome = await sample(flow=NO_FLOW)
            return
        async with front.slots.hold(front.once.pipeline, record):
            with front.shares.request():
                account.outcome = await sample(flow=Flow(f"caller {record.name}", record.weight))
        completion = account.outcome.completion
        if metrics.serving() and completion is not None:
            account.cost = cost_of(asked.request, front.settings.profile, completion) or 0.0


async def show_usage(http: web.Request) -> web.Response:
    """A caller's own counts."""
    front, caller = http.app[FRONT], http[CALLER]
    if caller.record is None:
        raise Refusal(404, "usage is counted for callers that have a token; the server has none yet", "no_tokens")
    try:
        counts = await front.usage.of(front.once.pipeline, caller.name)
    except REDIS_ERRORS:
        raise redis_away() from None
    shown = {"caller": caller.name, **counts, "budget_tokens": caller.record.budget_tokens or None}
    return web.Response(body=json_bytes.encode(shown), content_type="application/json")
