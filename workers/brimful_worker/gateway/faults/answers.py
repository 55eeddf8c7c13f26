"""Faults of the answer: one that is spoiled, and the true one told in an unusual way."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable
from typing import Any

from aiohttp import web

from brimful_worker.gateway.refusal import error_body
from brimful_worker.gateway.wire import Strike, Wire, fault, json_response, raw_response, whole_response


def _spoiled(name: str, about: str, spoil: Callable[[dict[str, Any], str | None], Any]) -> None:
    @fault(name, about, done=True)
    def build(parameter: str | None) -> Strike:
        async def strike(wire: Wire) -> web.StreamResponse:
            answer = wire.answer()
            found = spoil(answer, parameter)
            return json_response(answer if found is None else found)

        return strike


def _short(answer: dict[str, Any], parameter: str | None) -> None:
    choices = answer.get("choices", [])
    del choices[max(0, len(choices) - int(parameter or 1)) :]


def _long(answer: dict[str, Any], parameter: str | None) -> None:
    choices = answer.get("choices", [])
    for _ in range(int(parameter or 1)):
        choices.append({**choices[-1], "index": len(choices)})


def _nulltext(answer: dict[str, Any], parameter: str | None) -> None:
    first = answer["choices"][0]
    if "message" in first:
        first["message"]["content"] = None
    else:
        first["text"] = None


_spoiled("nullchoices", "choices is null", lambda answer, _: {**answer, "choices": None})
_spoiled("short", "the last choice (=N: the last N) missing", _short)
_spoiled("long", "one choice (=N: N) too many", _long)
_spoiled("nulltext", "the first choice's text is null", _nulltext)
_spoiled("nousage", "usage is null", lambda answer, _: {**answer, "usage": None})
_spoiled("array", "a JSON array in place of the object", lambda answer, _: [answer])


@fault("badutf8", "JSON with bytes that are no UTF-8", done=True)
def _badutf8(parameter: str | None) -> Strike:
    async def strike(wire: Wire) -> web.StreamResponse:
        body = wire.body()
        return raw_response(body.replace(b'": "', b'":"').replace(b'":"', b'":"\xff\xfe'))

    return strike


@fault("400completion", "a whole Completion under status 400", done=True)
def _400completion(parameter: str | None) -> Strike:
    async def strike(wire: Wire) -> web.StreamResponse:
        return json_response(wire.answer(), 400)

    return strike


# -- the true answer, in an unusual way -----------------------------------------------------------------------------


@fault("slow", "=seconds (default 2) more before the answer", done=True)
def _slow(parameter: str | None) -> Strike:
    seconds = float(parameter or 2)

    async def strike(wire: Wire) -> web.StreamResponse:
        await asyncio.sleep(seconds)
        return whole_response(wire)

    return strike


@fault("drip", "the body in ten pieces over =seconds (default 2)", done=True, wired=True)
def _drip(parameter: str | None) -> Strike:
    seconds = float(parameter or 2)

    async def strike(wire: Wire) -> web.StreamResponse:
        body = wire.body()
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.content_length = len(body)
        await response.prepare(wire.request)
        step = -(-len(body) // 10)
        for start in range(0, len(body), step):
            await asyncio.sleep(seconds / 10)
            if start + step >= len(body):
                wire.release()
                wire.delivered()
            await response.write(body[start : start + step])
        await response.write_eof()
        return response

    return strike


@fault("gzip", "the answer gzipped", done=True)
def _gzip(parameter: str | None) -> Strike:
    async def strike(wire: Wire) -> web.StreamResponse:
        response = whole_response(wire)
        response.body = gzip.compress(wire.body(), 1)
        response.headers["Content-Encoding"] = "gzip"
        return response

    return strike


@fault("spaced", "the answer as JSON with white space, escapes and a byte order mark", done=True)
def _spaced(parameter: str | None) -> Strike:
    async def strike(wire: Wire) -> web.StreamResponse:
        wire.delivered()
        return raw_response(b"\xef\xbb\xbf\n " + json.dumps(wire.answer(), indent=2).encode())

    return strike


@fault("stale", "the answer, and then the kept-alive connection closed without a word", done=True, wired=True)
def _stale(parameter: str | None) -> Strike:
    async def strike(wire: Wire) -> web.StreamResponse:
        if (transport := wire.request.transport) is not None:
            asyncio.get_running_loop().call_later(0.02, transport.close)
        return whole_response(wire)

    return strike


@fault("jobfail", "the Job fails: its result is a 500 error object")
def _jobfail(parameter: str | None) -> Strike:
    async def strike(wire: Wire) -> web.StreamResponse:  # a Job's run has no wire: jobs.py asks only whether it fails
        return json_response(error_body(500, "job_failed", "The Job failed."), 500)

    return strike
