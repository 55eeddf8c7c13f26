"""The two endpoints: a request is read, sampled unless its ``Idempotency-Key`` has an answer, and answered."""

from __future__ import annotations

import time
from dataclasses import replace

from aiohttp import web

from brimful.names import Mode
from brimful_worker.serve.caller import CALLER
from brimful_worker.serve.completions.once import StoredAnswer
from brimful_worker.serve.completions.reading import CallerRequest, read
from brimful_worker.serve.completions.streams import answer_stream
from brimful_worker.serve.completions.whole import answer_whole
from brimful_worker.serve.front import FRONT
from brimful_worker.serve.headers import PROVIDER_ID, REPLAYED


async def completions(http: web.Request) -> web.StreamResponse:
    return await _answer(http, Mode.COMPLETION)


async def chat_completions(http: web.Request) -> web.StreamResponse:
    return await _answer(http, Mode.CHAT)


async def _answer(http: web.Request, mode: Mode) -> web.StreamResponse:
    asked = await read(http, mode)
    if asked.idempotency_key is not None:
        return await _answer_once(http, asked, asked.idempotency_key)
    return await (answer_stream(http, asked) if asked.stream else answer_whole(http, asked))


async def _answer_once(http: web.Request, asked: CallerRequest, key: str) -> web.StreamResponse:
    front, began = http.app[FRONT], time.monotonic()
    claim = front.once.claim(http[CALLER].owner, key, asked.request.mode.value.encode() + b"\n" + asked.body)
    try:
        async with front.gate.turn(asked.deadline_s):
            found = await claim.take()
        if found is not None:
            kept, body = found
            headers = {"Content-Type": kept.content_type, REPLAYED: "true"}
            headers |= {PROVIDER_ID: kept.provider_request_id} if kept.provider_request_id else {}
            return web.Response(body=body, headers=headers)
        if asked.deadline_s is not None:
            asked = replace(asked, deadline_s=max(0.0, asked.deadline_s - (time.monotonic() - began)))

        async def keep(answer: web.StreamResponse, body: bytes) -> None:
            await claim.keep(StoredAnswer(answer.headers["Content-Type"], answer.headers.get(PROVIDER_ID)), body)

        if asked.stream:
            return await answer_stream(http, asked, keep)
        response = await answer_whole(http, asked)
        if isinstance(response, web.Response) and isinstance(response.body, bytes) and response.body:
            await keep(response, response.body)
        return response
    finally:
        claim.release()
