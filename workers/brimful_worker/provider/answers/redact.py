"""Removes the key, other secrets of headers and the prompts from the provider's messages. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from brimful.credentials import MIN_KEY_CHARS
from brimful.request import Request
from brimful_worker.provider.answers.answer import Classification

_SURE_KEY_CHARS = 16
"""A shorter key is replaced only where it stands as a whole word."""
_MIN_PROMPT_CHARS = 6
"""A shorter prompt occurs within ordinary words, so it is not searched for."""
_MIN_QUOTE_CHARS = 24
"""This many consecutive characters of a prompt are a quotation; fewer may be chance."""
_CODE = re.compile(r"[\w.-]{1,64}")
"""What an error code looks like; anything else may quote the request."""
_MAX_PROMPT_CHARS = 200_000
"""Only this many characters of the prompts are searched."""


def redact(classification: Classification, secrets: Mapping[str, str], request: Request) -> Classification:
    """The classification with secrets and quotations of the prompts removed from its message, and from its code.

    ``secrets``: the key and the values of variables in headers, and the name that stands for each.
    """
    message, code = classification.message, classification.code
    if code is not None and not _CODE.fullmatch(code):
        code = None
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) < MIN_KEY_CHARS:
            break
        if code is not None and secret in code:
            code = None
        if secret in message:
            whole = "" if len(secret) >= _SURE_KEY_CHARS else r"[\w-]"
            pattern = f"(?<!{whole}){re.escape(secret)}(?!{whole})" if whole else re.escape(secret)
            message = re.sub(pattern, f"[{secrets[secret]}]", message)
    if classification.status is not None:  # otherwise the message is ours, not the provider's
        prompts = _prompts_in_one_line(request)
        for prompt in prompts:
            if _MIN_PROMPT_CHARS <= len(prompt) <= len(message) and prompt in message:
                message = message.replace(prompt, "[prompt]")
        message = _replace_quotes(message, "\0".join(prompts)[:_MAX_PROMPT_CHARS])
    if (message, code) == (classification.message, classification.code):
        return classification
    return replace(classification, message=message, code=code)


def _prompts_in_one_line(request: Request) -> list[str]:
    texts: list[str] = []
    for prompt in request.prompts:
        if isinstance(prompt, str):
            texts.append(prompt)
        else:
            texts += [str(message.get("content")) for message in prompt if isinstance(message, dict)]
    return [" ".join(text[:_MAX_PROMPT_CHARS].split()) for text in texts]


def _replace_quotes(message: str, prompts: str) -> str:
    """Providers truncate quotations at either end, so any long stretch that occurs in the prompts is replaced."""
    begin = 0
    while begin + _MIN_QUOTE_CHARS <= len(message):
        end = begin + _MIN_QUOTE_CHARS
        if message[begin:end] not in prompts:
            begin += 1
            continue
        while end < len(message) and message[begin : end + 1] in prompts:
            end += 1
        message = f"{message[:begin]}[prompt]{message[end:]}"
        begin += len("[prompt]")
    return message
