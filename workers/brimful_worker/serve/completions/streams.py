"""Answers a request with a stream: the provider's events as they come, and comments while there are none.

The sampler reads the provider's stream at its own pace, in a task of its own: a caller that reads slowly, or not at
all, holds no slot for longer than the provider generates.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from brimful.outcome import Outcome
from brimful.runtime import json_bytes
from brimful.runtime.aio import cancel_and_wait
from brimful_worker.serve.caller import ANSWERED, CALLER
from brimful_worker.serve.callers.sampling import sample_for_caller
from brimful_worker.serve.completions.exchanges import Streamed
from brimful_worker.serve.completions.failures import failed
from brimful_worker.serve.completions.reading import SHOWN_ID, CallerRequest
from brimful_worker.serve.front import FRONT, Front
from brimful_worker.serve.headers import answer_headers
from brimful_worker.serve.refusals import Refusal

log = logging.getLogger(__name__)

Keep = Callable[[web.StreamResponse, bytes], Awaitable[None]]
"""Gets a complete answer and its body."""

_WAITING = b": waiting\n\n"
_STALLED_S = 60.0
"""A caller that takes nothing for this long is cut off."""


class Channel:
    """Events on their way from the sampler to the caller."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._ended = False
        self._news = asyncio.Event()

    def put(self, event: bytes) -> None:
        self._parts.append(event)
        self._news.set()

    def end(self) -> None:
        self._ended = True
        self._news.set()

    async def get(self, patience_s: float) -> bytes | None:
        """All that is there; empty after ``patience_s`` without any, None at the end."""
        try:
            async with asyncio.timeout(patience_s):
                await self._news.wait()
        except TimeoutError:
            return b""
        parts, self._parts = self._parts, []
        if not parts:
            return None
        if not self._ended:
            self._news.clear()
        return b"".join(parts)


class _Response:
    """The caller's side of a stream. It opens with the first event, or comment."""

    def __init__(self, http: web.Request, front: Front) -> None:
        self._http = http
        self._front = front
        self.stream: web.StreamResponse | None = None

    async def write(self, data: bytes, exchange: Streamed) -> None:
        if self.stream is None:
            headers = answer_headers(self._front, exchange.headers, exchange.attempts, exchange.waited_s)
            self.stream = web.StreamResponse(headers={**_STREAM_HEADERS, **headers})
            self.stream.headers["x-request-id"] = self._http[SHOWN_ID]
            await self.stream.prepare(self._http)
        try:
            async with asyncio.timeout(_STALLED_S):
                await self.stream.write(data)
        except TimeoutError:
            if self._http.transport is not None:
                self._http.transport.abort()
            raise ConnectionResetError("the caller does not read its stream") from None


_STREAM_HEADERS: Mapping[str, str] = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # for nginx
}


async def answer_stream(http: web.Request, asked: CallerRequest, keep: Keep | None = None) -> web.StreamResponse:
    """Raises Refusal if nothing was sent to the caller yet; later failures are an ``error`` event.

    The last event, ``[DONE]``, is written when the request is counted and ``keep`` has the answer: a caller may hang up
    as soon as it has read that, as OpenAI's client does, and aiohttp then cancels this handler.
    """
    front = http.app[FRONT]
    channel = Channel()
    events: list[bytes] = []

    def forward(event: bytes) -> None:
        channel.put(event)
        if keep is not None:
            events.append(event)

    exchange = Streamed(asked, forward)
    response = _Response(http, front)
    refusal: Refusal | None = None
    try:
        outcome = await _pass_on(http, asked, exchange, channel, response)
        if outcome.failure is not None:
            refusal = failed(outcome.failure, exchange.last, front.process.key.provider)
            refusal.headers |= answer_headers(front, exchange.headers, outcome.attempts, outcome.waited_s)
    except Refusal as error:
        refusal = error
    if refusal is not None:
        if response.stream is None:
            raise refusal
        front.recent.refused(http[CALLER].name, refusal.status, refusal.code, http.path)
        log.info("the stream of %s ended with an error: %s", http[SHOWN_ID], refusal.code)
        await response.write(exchange.error_event or _error_event(refusal), exchange)
    assert response.stream is not None
    if refusal is None:
        if keep is not None:
            await keep(response.stream, b"".join([*events, exchange.done]))
        await response.write(exchange.done, exchange)
        http[ANSWERED] = True
    await response.stream.write_eof()
    return response.stream


async def _pass_on(
    http: web.Request, asked: CallerRequest, exchange: Streamed, channel: Channel, response: _Response
) -> Outcome:
    """Raises Refusal."""
    front = http.app[FRONT]
    async with front.gate.turn(asked.deadline_s) as turn:
        sampling = asyncio.create_task(sample_for_caller(http, asked, turn, exchange))
        sampling.add_done_callback(lambda _: channel.end())
        try:
            while (events := await channel.get(front.settings.serve_keepalive_s)) is not None:
                await response.write(events or _WAITING, exchange)
            return await sampling
        finally:
            await cancel_and_wait([sampling])


def _error_event(refusal: Refusal) -> bytes:
    return b"event: error\ndata: " + json_bytes.encode(json_bytes.decode(refusal.body)) + b"\n\n"
