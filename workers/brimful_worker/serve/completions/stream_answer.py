"""The provider's stream, read event by event: what is passed on, and whether the answer is complete."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from brimful.names import Mode
from brimful.runtime import json_bytes
from brimful_worker.provider.answers.answer import Classification
from brimful_worker.provider.answers.refusal import classify_refusal, find_error
from brimful_worker.serve.completions.reading import CallerRequest

DONE = b"data: [DONE]\n\n"
_END = re.compile(rb"\r?\n\r?\n")
_PIECES = ("content", "reasoning", "reasoning_content", "refusal")


class EventSplitter:
    """Cuts a byte stream into server-sent events, each with the empty line that ends it."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[bytes]:
        rest, searched = self._rest, max(0, len(self._rest) - 3)
        rest += chunk
        events, begin = [], 0
        while (end := _END.search(rest, max(begin, searched))) is not None:
            events.append(bytes(rest[begin : end.end()]))
            begin = end.end()
        del rest[:begin]
        return events

    def finish(self) -> list[bytes]:
        """What is left at the end of the body, as an event: some servers leave out the last empty line."""
        rest = bytes(self._rest).strip(b"\r\n")
        self._rest.clear()
        return [rest + b"\n\n"] if rest else []


def data_of(event: bytes) -> bytes | None:
    """An event's data; None if it has none, as a comment."""
    lines = [line.removeprefix(b"data:").removeprefix(b" ") for line in event.splitlines() if line[:5] == b"data:"]
    return b"\n".join(lines) if lines else None


@dataclass(frozen=True, slots=True)
class StreamRefusal:
    """An error that came as an event."""

    event: bytes
    data: bytes
    classification: Classification


class StreamAnswer:
    """The stream that answers one attempt. ``forward`` gets each of its events, as it came, and the answer's headers.

    An error event is not forwarded, nor is ``[DONE]``: what follows from them is decided when the attempt has ended.
    """

    def __init__(self, asked: CallerRequest, forward: Callable[[bytes, Mapping[str, str]], None]) -> None:
        self._asked = asked
        self._forward = forward
        self.headers: Mapping[str, str] = {}
        self._splitter = EventSplitter()
        self._pieces: dict[int, list[str]] = defaultdict(list)
        self._finished: dict[int, Any] = {}
        self._usage: Any = None
        self._last: dict[str, Any] = {}
        self._done = self._ended = self._over = False
        self._error: tuple[bytes, dict[str, Any]] | None = None
        self._fault = ""
        self.listening = False
        """The provider answers with a stream."""
        self.done = DONE
        """The provider's event ``[DONE]``; ours where it sent none, since callers wait for it."""

    def listen(self, status: int, headers: Mapping[str, str]) -> Callable[[bytes], bool] | None:
        """For :meth:`Provider.exchange`."""
        if not 200 <= status < 300 or "event-stream" not in headers.get("content-type", "").lower():
            return None
        self.listening, self.headers = True, headers
        return self._feed

    @property
    def complete(self) -> bool:
        """Every choice has finished, and the body has ended or said so."""
        if self._fault or self._error or len(self._finished) < self._asked.request.choices:
            return False
        return self._done or (self._ended and not (self._asked.usage_wanted and self._usage is None))

    def completion(self) -> dict[str, Any]:
        """The complete answer, as far as brimful counts and measures it."""
        chat = self._asked.request.mode is Mode.CHAT
        choices = []
        for index in sorted(self._finished):
            text = "".join(self._pieces[index])
            content = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
            choices.append({"index": index, "finish_reason": self._finished[index], **content})
        return {"model": self._last.get("model"), "choices": choices, "usage": self._usage}

    def refusal(self) -> StreamRefusal | None:
        """The error event that ended the stream."""
        if self._error is None:
            return None
        event, document = self._error
        refused = classify_refusal(200, self.headers, find_error(document), now=time.time())
        return StreamRefusal(event, data_of(event) or b"", refused)

    def fault(self) -> str:
        """Why an answer without an error is not complete."""
        if self._fault:
            return self._fault
        wanted, ended = self._asked.request.choices, len(self._finished)
        if ended < wanted:
            return f"the provider's stream ended early: {wanted - ended} of {wanted} choices had not finished"
        return "the provider's stream ended early: without [DONE] and the usage that was asked for"

    def _feed(self, chunk: bytes) -> bool:
        """True: nothing more is needed. An empty chunk is the end of the body."""
        for event in self._splitter.feed(chunk) if chunk else self._splitter.finish():
            if not self._over:
                self._take(event)
        if not chunk and not self._over:
            self._ended = True
        return self._over

    def _take(self, event: bytes) -> None:
        data = data_of(event)
        if data is None:
            return
        if data.strip() == b"[DONE]":
            self._done, self._over, self.done = True, True, event
            return
        try:
            document = json_bytes.decode(data)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            self._fault, self._over = "the provider's stream holds an event that is no JSON object", True
        elif find_error(document) is not None:
            self._error, self._over = (event, document), True
        else:
            self._note(document)
            self._forward(event, self.headers)

    def _note(self, document: dict[str, Any]) -> None:
        self._last = document
        if document.get("usage") is not None:
            self._usage = document["usage"]
        choices = document.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            index = choice.get("index", 0) if isinstance(choice, dict) else None
            if not isinstance(index, int) or not 0 <= index < self._asked.request.choices:
                continue
            self._pieces[index] += _texts(choice)
            if choice.get("finish_reason") is not None:
                self._finished[index] = choice["finish_reason"]


def _texts(choice: dict[str, Any]) -> list[str]:
    """All text of a chunk that tokens went into."""
    if isinstance(text := choice.get("text"), str):
        return [text]
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return []
    found = [delta[name] for name in _PIECES if isinstance(delta.get(name), str)]
    calls = delta.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            found += [function[name] for name in ("name", "arguments") if isinstance(function.get(name), str)]
    return found
