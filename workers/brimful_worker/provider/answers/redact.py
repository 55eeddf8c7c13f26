"""Keys and prompts taken out of what the provider said. Pure."""

from __future__ import annotations

from dataclasses import replace

from brimful.request import Request
from brimful_worker.provider.answers.answer import Classification

_SHORTEST = 6
"""A prompt of fewer characters is part of ordinary words; it is not looked for."""
_QUOTE = 24
"""So many of a prompt's characters in a row are a quotation; fewer may be chance."""
_MOST = 200_000
"""Characters of prompts that are looked at."""


def redact(told: Classification, key: str, request: Request) -> Classification:
    """The same meaning, its message without the key, and without what it quotes of the prompts."""
    message = told.message
    if key and key in message:
        message = message.replace(key, "[key]")
    if told.status is not None:  # else the words are our own
        texts = _texts(request)
        for text in texts:
            if _SHORTEST <= len(text) <= len(message) and text in message:
                message = message.replace(text, "[prompt]")
        message = _without(message, "\0".join(texts)[:_MOST])
    return told if message == told.message else replace(told, message=message)


def _texts(request: Request) -> list[str]:
    """The prompts as a one-line message would show them."""
    texts: list[str] = []
    for prompt in request.prompts:
        if isinstance(prompt, str):
            texts.append(prompt)
        else:
            texts += [str(message.get("content")) for message in prompt if isinstance(message, dict)]
    return [" ".join(text[:_MOST].split()) for text in texts]


def _without(message: str, prompts: str) -> str:
    """A quotation may be cut at either end: any stretch of the message that the prompts hold is taken out."""
    begin = 0
    while begin + _QUOTE <= len(message):
        end = begin + _QUOTE
        if message[begin:end] not in prompts:
            begin += 1
            continue
        while end < len(message) and message[begin : end + 1] in prompts:
            end += 1
        message = f"{message[:begin]}[prompt]{message[end:]}"
        begin += len("[prompt]")
    return message
