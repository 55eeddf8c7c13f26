"""Answers a request in one piece."""

from __future__ import annotations

from aiohttp import web

from brimful.runtime import json_bytes
from brimful_worker.serve.callers.sampling import sample_for_caller
from brimful_worker.serve.completions.exchanges import WholeAnswer
from brimful_worker.serve.completions.failures import failed
from brimful_worker.serve.completions.reading import CallerRequest
from brimful_worker.serve.front import FRONT
from brimful_worker.serve.headers import answer_headers


async def answer_whole(http: web.Request, asked: CallerRequest) -> web.Response:
    """Raises Refusal."""
    front = http.app[FRONT]
    exchange = WholeAnswer(asked)
    async with front.gate.turn(asked.deadline_s) as turn:
        outcome = await sample_for_caller(http, asked, turn, exchange)
    provider_headers = exchange.last.headers if exchange.last is not None else {}
    headers = answer_headers(front, provider_headers, outcome.attempts, outcome.waited_s)
    if outcome.failure is not None:
        refusal = failed(outcome.failure, exchange.last, front.process.key.provider)
        refusal.headers |= headers
        raise refusal
    body = exchange.body() or json_bytes.encode(outcome.completion)
    return web.Response(body=body, headers=headers, content_type="application/json")
