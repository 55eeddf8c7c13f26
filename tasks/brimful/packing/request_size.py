"""Bounds of one request: prompts, choices, tokens and bytes. Pure.

The bounds are the profile's, from the provider's documentation (``prompt_count x n x max_tokens``; ``max_tokens``
explicit where there is more than one choice). A bound that the profile does not set does not exist.
"""

from __future__ import annotations

import json
from typing import Any

from brimful.errors import RequestTooLarge
from brimful.names import Mode, Workload
from brimful.profile import Profile
from brimful.request import Request

MAX_PACK_BYTES = 512 * 1024
"""Most bytes of prompts in a packed request; many servers refuse bodies above 1 MiB. A larger prompt goes alone."""

_MESSAGE_BYTES = len('{"role": "", "content": ""}, ')
_UNBOUNDED_PROMPTS = 1_000_000
"""Prompts in one request where the profile sets no bound."""


def line_profile(profile: Profile) -> Profile:
    """The profile to check an input line under: without the bounds that splitting takes care of."""
    return profile.model_copy(update={"max_request_tokens": None, "max_prompts": None, "max_n": None})


def check_line(request: Request, profile: Profile) -> None:
    """Raises RequestTooLarge where not even one choice of one prompt fits a request."""
    bound = profile.max_request_tokens
    if bound is not None and request.max_tokens is not None and request.max_tokens > bound:
        raise RequestTooLarge(
            f"max_tokens: {request.max_tokens:,} for one choice, above {profile.name}'s {bound:,} in one request; "
            "ask for fewer"
        )


def most_choices(request: Request, profile: Profile) -> int:
    """Choices of one prompt in one request; at least 1, even where :func:`check_line` raises."""
    most = profile.max_n or request.n
    if request.max_tokens is None:
        return 1 if profile.max_tokens_required else most
    if profile.max_request_tokens is not None:
        most = min(most, profile.max_request_tokens // request.max_tokens)
    return max(1, most)


def most_prompts(request: Request, n: int, profile: Profile) -> int:
    """Prompts with ``n`` choices each in one request, by the profile alone; 1 where packing is not possible."""
    if request.mode is Mode.CHAT or profile.max_prompts == 1:
        return 1
    most = profile.max_prompts or _UNBOUNDED_PROMPTS
    if request.max_tokens is None:
        return 1 if profile.max_tokens_required or profile.max_request_tokens is not None else most
    if profile.max_request_tokens is not None:
        most = min(most, profile.max_request_tokens // (n * request.max_tokens))
    return max(1, most)


def lacks_max_tokens(request: Request, profile: Profile) -> bool:
    """Whether the request cannot be packed only because its ``max_tokens`` is not set."""
    if request.max_tokens is not None or request.mode is Mode.CHAT or request.workload is not Workload.BATCH:
        return False
    bound = profile.max_tokens_required or profile.max_request_tokens is not None
    return bound and profile.max_prompts != 1


def prompt_bytes(prompt: Any) -> int:
    """Approximate bytes of a prompt (a string, a ``list[int]`` or a chat's messages) in a JSON body."""
    if isinstance(prompt, str):
        return len(prompt) + 4 if prompt.isascii() else 6 * len(prompt) + 4
    if prompt and isinstance(prompt[0], int):
        return 7 * len(prompt) + 4
    size = 0
    for message in prompt:
        role, content = message.get("role"), message.get("content")
        if len(message) == 2 and isinstance(role, str) and isinstance(content, str):  # nearly all: no need to encode it
            size += _MESSAGE_BYTES + len(role) + len(content) * (1 if content.isascii() else 6)
        else:
            size += len(json.dumps(message)) + 2
    return max(size, 2)
