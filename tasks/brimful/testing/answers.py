"""What a test's answer function may return, and the outcome that it stands for. Pure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from brimful.errors import SampleError
from brimful.names import Mode
from brimful.outcome import Cause, Failure, Outcome
from brimful.request import Request
from brimful.words.counted import counted

Returned = str | list[str] | Mapping[str, Any] | Failure
Answer = Callable[[Request], Returned | Awaitable[Returned]]
"""Answers a request: with the text of every choice, a list of one text a choice (prompts x n), the provider's whole
completion, or a Failure. It may raise a SampleError, and may be a coroutine function."""


def outcome(request: Request, returned: Returned) -> Outcome:
    """Raises TypeError or ValueError, for the test's author, where ``returned`` is no answer to ``request``."""
    if isinstance(returned, Failure):
        return Outcome(request.id, failure=returned, attempts=1)
    if isinstance(returned, Mapping):
        return Outcome(request.id, completion=dict(returned), attempts=1)
    texts = [returned] * request.choices if isinstance(returned, str) else list(returned)
    if len(texts) != request.choices or not all(isinstance(text, str) for text in texts):
        raise ValueError(
            f"the answer has {counted(len(texts), 'text')}, but the request asks for "
            f"{counted(request.choices, 'choice')}"
        )
    return Outcome(request.id, completion=_completion(request, texts), attempts=1)


def failure(error: SampleError) -> Failure:
    """The failure that ``error`` says."""
    cause = Cause(error.cause) if error.cause in set(Cause) else Cause.INTERNAL
    return Failure(cause, error.message, error.status, code=error.code, retry_after_s=error.retry_after_s)


def _completion(request: Request, texts: list[str]) -> dict[str, Any]:
    chat = request.mode is Mode.CHAT
    choices: list[dict[str, Any]] = []
    for index, text in enumerate(texts):
        said = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        choices.append({"index": index, "finish_reason": "stop", **said})
    tokens = {"prompt_tokens": request.prompt_count, "completion_tokens": sum(len(text.split()) for text in texts)}
    return {
        "id": "test",
        "object": "chat.completion" if chat else "text_completion",
        "model": str(request.fields.get("model", "test-model")),
        "choices": choices,
        "usage": {**tokens, "total_tokens": sum(tokens.values())},
    }
