"""Plausible log probabilities of a generated text, in the forms of completions and of chat completions."""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Any

_TOKEN = re.compile(r"\s?\S+|\s")


def split_tokens(text: str) -> list[str]:
    """The text in pieces as the mock model generates them: words with the space before them."""
    return _TOKEN.findall(text)


def completion_logprobs(text: str, top: int) -> dict[str, Any]:
    """``logprobs`` of a completion's choice with ``top`` alternatives for each token."""
    tokens = split_tokens(text)
    offsets, at = [], 0
    for token in tokens:
        offsets.append(at)
        at += len(token)
    return {
        "tokens": tokens,
        "token_logprobs": [_logprob(token, 0) for token in tokens],
        "top_logprobs": [dict(_alternatives(token, top)) for token in tokens] if top else None,
        "text_offset": offsets,
    }


def chat_logprobs(text: str, top: int) -> dict[str, Any]:
    """``logprobs`` of a chat completion's choice with ``top`` alternatives for each token."""

    def entry(token: str, logprob: float) -> dict[str, Any]:
        return {"token": token, "logprob": logprob, "bytes": list(token.encode("utf-8", "surrogatepass"))}

    content = [
        {
            **entry(token, _logprob(token, 0)),
            "top_logprobs": [entry(other, logprob) for other, logprob in _alternatives(token, top)],
        }
        for token in split_tokens(text)
    ]
    return {"content": content, "refusal": None}


def _alternatives(token: str, top: int) -> list[tuple[str, float]]:
    return [(token if rank == 0 else f"{token}~{rank}", _logprob(token, rank)) for rank in range(top)]


def _logprob(token: str, rank: int) -> float:
    """Negative, the same for the same token, and lower for each further rank."""
    digest = blake2b(token.encode("utf-8", "surrogatepass"), digest_size=2).digest()
    return -round(int.from_bytes(digest, "big") / 65536 + rank + 0.001, 4)
