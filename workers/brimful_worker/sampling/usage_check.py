"""Whether the usage of an answer can be true, and an estimate where it is missing or cannot be.

Some servers report the tokens of one choice for a list of prompts (llama.cpp's server), zeros, or nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from brimful.packing.token_ratio import PromptSize, TokenRatio
from brimful.packing.usage import ESTIMATED
from brimful.request import MOST_TOKENS, Request
from brimful.words.counted import counted

log = logging.getLogger(__name__)

_MOST_BYTES = 24
"""Bytes of text per token that no tokenizer exceeds on average."""
_DOUBTFUL = 0.8
"""Below this share of the fewest tokens seen for as many bytes, the usage of several choices is not believed."""
_LONG = 256
"""Bytes from which on that is judged."""
_TEXTS = ("content", "reasoning", "reasoning_content", "tool_calls", "refusal")
_ENOUGH = 3
"""Answers of one choice that teach what to expect."""


class UsageCheck:
    """Learns from answers of one choice, whose usage is hardly ever wrong, and judges all others by them."""

    def __init__(self) -> None:
        self._prompt, self._text = TokenRatio(), TokenRatio()
        self._learnt = 0
        self._several = self._disproved = 0
        """Answers of several choices; those of them whose usage could not be true."""
        self._said = False

    def check(self, completion: dict[str, Any], request: Request) -> int:
        """Replace the completion's usage by an estimate, marked ``estimated``, if it is missing or cannot be true.

        Returns the tokens that the request may have used beyond the estimate: the rest of its hold.
        """
        choices = completion["choices"]
        prompts, texts = PromptSize.of(request.prompts), PromptSize.of(map(_text, choices))
        usage = completion.get("usage")
        told = [_count(usage, "prompt_tokens"), _count(usage, "completion_tokens")]
        if told[0] is not None and told[1] is not None and self._believable(request, completion, prompts, texts):
            if len(choices) == request.choices == 1 and told[1] <= texts.bytes:  # else it holds hidden reasoning
                self._learnt += 1
                self._prompt.learn(prompts, told[0])
                self._text.learn(texts, told[1])
            return 0
        if not self._said:
            self._said = True
            reported = f"usage that cannot be right ({told[0]} prompt and {told[1]} completion tokens"
            reported += f" for {counted(request.prompt_count, 'prompt')} and {counted(len(choices), 'choice')})"
            log.warning(
                "the provider reports %s: tokens are estimated from the texts, and budgets are charged the most that "
                "requests may have used",
                "no usage" if told == [None, None] else reported,
            )
        asked = max(told[0] or 0, self._prompt.likely(prompts))
        sampled = max(told[1] or 0, sum(self._tokens(choice, request.max_tokens) for choice in choices))
        completion["usage"] = {
            "prompt_tokens": asked,
            "completion_tokens": sampled,
            "total_tokens": asked + sampled,
            ESTIMATED: True,
        }
        return max(0, request.hold - asked - sampled)

    def _believable(
        self, request: Request, completion: Mapping[str, Any], prompts: PromptSize, texts: PromptSize
    ) -> bool:
        """A server that miscounts several choices does so every time, though not every answer proves it."""
        possible = self._possible(request, completion, prompts, texts)
        if len(completion["choices"]) == 1:
            return possible
        self._several += 1
        self._disproved += not possible
        return possible and 2 * self._disproved < self._several

    def _possible(
        self, request: Request, completion: Mapping[str, Any], prompts: PromptSize, texts: PromptSize
    ) -> bool:
        usage, choices = completion["usage"], completion["choices"]
        asked, sampled = usage["prompt_tokens"], usage["completion_tokens"]
        if asked < prompts.tokens + max(prompts.parts > 0, prompts.bytes // _MOST_BYTES):
            return False
        if sampled < max(texts.bytes > 0, texts.bytes // _MOST_BYTES):
            return False
        if len(choices) == 1:
            return True
        # Choices that were cut at max_tokens have as many, unless the context ended first.
        if all(choice.get("finish_reason") == "length" for choice in choices) and request.max_tokens is not None:
            return bool(sampled >= 0.6 * len(choices) * request.max_tokens)
        if self._learnt < _ENOUGH:
            return True
        doubtful = (prompts.bytes >= _LONG and asked < _DOUBTFUL * self._prompt.least(prompts)) or (
            texts.bytes >= _LONG and sampled < _DOUBTFUL * self._text.least(texts)
        )
        return not doubtful

    def _tokens(self, choice: Mapping[str, Any], max_tokens: int | None) -> int:
        """Of one choice. One that ended at ``max_tokens`` has as many."""
        if choice.get("finish_reason") == "length" and max_tokens is not None:
            return max_tokens
        text = _text(choice)
        likely = self._text.likely(PromptSize.of([text])) if text else 0
        return likely if max_tokens is None else min(likely, max_tokens)


def _text(choice: Mapping[str, Any]) -> str:
    """All that the choice's tokens went into."""
    message = choice.get("message")
    if not isinstance(message, dict):
        return str(choice.get("text") or "")
    if len(message) == 2 and isinstance(content := message.get("content"), str) and "role" in message:
        return content  # what nearly every answer of a chat is
    parts = [part for name in _TEXTS if (part := message.get(name))]
    return "".join([part if isinstance(part, str) else str(part) for part in parts])


def _count(usage: Any, name: str) -> int | None:
    """None where it is no number, or larger than what any request may use: a counter that ran below zero."""
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else None
