"""The Completion (or chat completion) that answers a valid request."""

from __future__ import annotations

import time
import uuid
from typing import Any

from brimful_worker.gateway.ask import Ask
from brimful_worker.gateway.options import GatewayOptions
from brimful_worker.gateway.text import sample_text


def complete(ask: Ask, options: GatewayOptions) -> dict[str, Any]:
    """All prompts x n choices, choice i of prompt p at index p*n + i, and the usage."""
    choices: list[dict[str, Any]] = []
    generated = 0
    for digest in ask.digests:
        for choice in range(ask.n):
            text, tokens, finish = sample_text(
                digest,
                choice,
                max_tokens=ask.max_tokens,
                seed=ask.seed,
                model=ask.model,
                greedy=ask.greedy,
                natural=options.natural_tokens,
                odd=options.text == "unicode",
            )
            for stop in ask.stop:
                if (cut := text.find(stop)) >= 0:
                    text, finish = text[:cut], "stop"
                    tokens = len(text.split())
            generated += tokens
            choices.append(choice_object(ask, len(choices), text, finish))
    return {
        "id": ("chatcmpl-" if ask.chat else "cmpl-") + uuid.uuid4().hex,
        "object": "chat.completion" if ask.chat else "text_completion",
        "created": int(time.time()),
        "model": ask.model,
        "choices": choices,
        "usage": {
            "prompt_tokens": ask.prompt_tokens,
            "completion_tokens": generated,
            "total_tokens": ask.prompt_tokens + generated,
        },
    }


def choice_object(ask: Ask, index: int, text: str | None, finish: str) -> dict[str, Any]:
    if ask.chat:
        message = {"role": "assistant", "content": text}
        return {"index": index, "message": message, "logprobs": None, "finish_reason": finish}
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}
