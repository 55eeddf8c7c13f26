"""Fields of requests that brimful does not know: sent as they are, and pointed out, for they may be misspelt."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any
from zlib import crc32

_OPENAI = """
model prompt messages n max_tokens max_completion_tokens temperature top_p stop seed logprobs top_logprobs echo suffix
best_of logit_bias presence_penalty frequency_penalty user stream stream_options response_format tools tool_choice
parallel_tool_calls functions function_call reasoning_effort metadata store service_tier
"""
_OTHERS = """
steering top_k min_p min_tokens repetition_penalty length_penalty stop_token_ids ignore_eos skip_special_tokens
add_special_tokens spaces_between_special_tokens include_stop_str_in_output prompt_logprobs truncate_prompt_tokens
chat_template chat_template_kwargs add_generation_prompt continue_final_message guided_json guided_regex guided_choice
guided_grammar structured_outputs priority
"""
_OURS = "id mode workload system"
KNOWN = frozenset(f"{_OPENAI} {_OTHERS} {_OURS}".split())
"""OpenAI's completions and chat completions, and what servers of the same protocol commonly take."""
_NAMES = 50  # told apart
_CUTOFF = 0.8
_LONG = 60  # characters of a name that are shown
_describe = json.JSONEncoder(sort_keys=True).encode


@dataclass
class UnknownField:
    name: str
    value: int
    """A digest of the first one."""
    lines: int = 0
    varies: bool = False

    def __str__(self) -> str:
        name = self.name if len(self.name) <= _LONG else self.name[: _LONG - 1] + "…"
        meant = likely(self.name)
        text = f"field {name!r} is not one brimful knows; it is sent as it is ({self.lines:,} "
        text += f"line{'s' if self.lines != 1 else ''})"
        if meant:
            text += f"; did you mean {meant}?"
        if self.varies:
            text += "; its value differs from line to line, so that those lines cannot share a request"
        return text

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "lines": self.lines, "varies": self.varies, "likely": likely(self.name)}


class UnknownFields:
    """Of all requests of an input; so many names at most."""

    def __init__(self) -> None:
        self._found: dict[str, UnknownField] = {}
        self.more = False
        """Whether there were more names than are told apart."""

    def add(self, fields: Mapping[str, Any]) -> None:
        for name in fields.keys() - KNOWN:
            found = self._found.get(name)
            if found is None:
                if len(self._found) >= _NAMES:
                    self.more = True
                    continue
                found = self._found[name] = UnknownField(name, _digest(fields[name]))
            found.lines += 1
            if not found.varies:
                found.varies = _digest(fields[name]) != found.value

    def __iter__(self) -> Iterator[UnknownField]:
        """The most frequent first."""
        return iter(sorted(self._found.values(), key=lambda field: (-field.lines, field.name)))

    def notes(self, most: int) -> list[str]:
        """In words, so many of them, and that there are more."""
        every = [str(field) for field in self]
        if rest := len(every) - most:
            every[most:] = [f"and {rest:,} such fields more{', or yet more' if self.more else ''}"] if rest > 0 else []
        return every


def likely(name: str) -> str | None:
    """The known field that a name is nearly."""
    close = get_close_matches(name.lower().replace("-", "_"), KNOWN, 1, _CUTOFF)
    return close[0] if close else None


def _digest(value: Any) -> int:
    return crc32(_describe(value).encode())
