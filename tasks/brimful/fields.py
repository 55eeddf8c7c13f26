"""The fields of a request that brimful knows. Others are sent unchanged and pointed out, since they may be misspelt."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from difflib import get_close_matches

from brimful.names import IDEMPOTENCY_KEY

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
"""Fields of OpenAI's completions and chat completions, and of common servers with the same protocol."""
_CUTOFF = 0.8
_HINTS = {"timeout": "only Fleet.sample and AsyncFleet.sample take a timeout"}
_LIBRARIES = {"asyncio", "brimful", "celery", "concurrent", "contextlib", "functools", "kombu"}


class UnknownFieldWarning(UserWarning):
    """A field of a request is unknown to brimful. It is sent unchanged; a filter for this category silences it."""


def likely(name: str) -> str | None:
    """The known field that ``name`` probably misspells."""
    close = get_close_matches(name.lower().replace("-", "_"), KNOWN, 1, _CUTOFF)
    return close[0] if close else None


def unknown_field(name: str) -> str:
    """The message about an unknown field."""
    text = f"field {name!r} is unknown to brimful and sent unchanged"
    if meant := _HINTS.get(name):
        return f"{text}; {meant}"
    return f"{text}; did you mean {meant}?" if (meant := likely(name)) else text


def warn_of_unknown(names: Iterable[str]) -> None:
    """Warn of each unknown field, at the line of the service that names it."""
    unknown = set(names) - KNOWN - {IDEMPOTENCY_KEY, "request"}
    if not unknown:
        return
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES:
        level, frame = level + 1, frame.f_back
    for name in sorted(unknown):
        warnings.warn(unknown_field(name), UnknownFieldWarning, stacklevel=level)
