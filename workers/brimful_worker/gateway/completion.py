"""The Completion or chat completion that answers a valid request."""

from __future__ import annotations

import time
import uuid
from typing import Any

from brimful_worker.gateway.options import GatewayOptions
from brimful_worker.gateway.sample_request import SampleRequest
from brimful_worker.gateway.text import sample_text


def complete(request: SampleRequest, options: GatewayOptions) -> dict[str, Any]:
    """All prompts x n choices, choice i of prompt p at index p*n + i, and the usage. ("Sample many rollouts")"""
    choices: list[dict[str, Any]] = []
    generated = 0
    for digest in request.digests:
        for choice in range(request.n):
            text, tokens, finish = sample_text(
                digest,
                choice,
                max_tokens=request.max_tokens,
                seed=request.seed,
                model=request.model,
                greedy=request.greedy,
                odd=options.text == "unicode",
            )
            for stop in request.stop:
                if (end := text.find(stop)) >= 0:
                    text, finish = text[:end], "stop"
                    tokens = len(text.split())
            generated += tokens
            said: dict[str, Any] = (
                {"message": {"role": "assistant", "content": text}} if request.chat else {"text": text}
            )
            choices.append({"index": len(choices), **said, "logprobs": None, "finish_reason": finish})
    return {
        "id": ("chatcmpl-" if request.chat else "cmpl-") + uuid.uuid4().hex,
        "object": "chat.completion" if request.chat else "text_completion",
        "created": int(time.time()),
        "model": request.model,
        "choices": choices,
        "usage": {
            "prompt_tokens": request.prompt_tokens,
            "completion_tokens": generated,
            "total_tokens": request.prompt_tokens + generated,
        },
    }
