"""A streamed answer: server-sent events in OpenAI's form, over the time that the request takes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from aiohttp import web

from brimful.runtime import json_bytes
from brimful_worker.gateway.model.completion import Completion
from brimful_worker.gateway.model.logprobs import split_tokens
from brimful_worker.gateway.responses import REQUEST_ID, error_body
from brimful_worker.gateway.sample_request import SampleRequest

Rounds = list[list[dict[str, Any]]]


def stream_rounds(request: SampleRequest, completion: Completion) -> Rounds:
    """The chunks of the answer in rounds; each round holds at most one chunk of each choice."""
    head = {name: value for name, value in completion.body.items() if name not in ("choices", "usage")}
    head["object"] = "chat.completion.chunk" if request.chat else "text_completion"
    if request.include_usage:
        head["usage"] = None
    deltas = _chat_deltas if request.chat else _text_deltas
    by_choice = [deltas(choice) for choice in completion.body["choices"]]
    rounds = [[{**head, "choices": [part]} for part in parts if part is not None] for parts in zip_longest(*by_choice)]
    if request.include_usage:
        rounds.append([{**head, "choices": [], "usage": completion.body.get("usage")}])
    return rounds


def _text_deltas(choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for token in split_tokens(choice["text"]):
        yield {"index": choice["index"], "text": token, "logprobs": None, "finish_reason": None}
    yield {
        "index": choice["index"],
        "text": "",
        "logprobs": choice["logprobs"],
        "finish_reason": choice["finish_reason"],
    }


def _chat_deltas(choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
    def part(delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        logprobs = choice["logprobs"] if finish_reason else None
        return {"index": choice["index"], "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}

    message = choice["message"]
    yield part({"role": "assistant", "content": None if message.get("tool_calls") else ""})
    for name in ("reasoning", "reasoning_content"):
        for token in split_tokens(message.get(name) or ""):
            yield part({name: token})
    for token in split_tokens(message["content"] or ""):
        yield part({"content": token})
    for number, call in enumerate(message.get("tool_calls", ())):
        function = {**call["function"], "arguments": ""}
        yield part({"tool_calls": [{**call, "index": number, "function": function}]})
        for token in split_tokens(call["function"]["arguments"]):
            yield part({"tool_calls": [{"index": number, "function": {"arguments": token}}]})
    yield part({}, choice["finish_reason"])


class EventStream:
    """Server-sent events to one client."""

    def __init__(self, http: web.BaseRequest) -> None:
        self._http = http
        self.response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        self.response.headers["x-request-id"] = http[REQUEST_ID]

    async def open(self) -> None:
        await self.response.prepare(self._http)

    async def send(self, *events: Any) -> None:
        """Each event is an object, or the text ``[DONE]``."""
        data = [event.encode() if isinstance(event, str) else json_bytes.encode(event) for event in events]
        await self.response.write(b"".join(b"data: %b\n\n" % one for one in data))

    async def fail(self, code: str, message: str) -> None:
        """An error event; the stream ends with it, without ``[DONE]``."""
        await self.send(error_body(500, code, message))
        await self.response.write_eof()
