"""How many tokens a provider counts in prompts, learnt from its answers. Pure.

Sizes are UTF-8 bytes: no byte-level tokenizer needs more than one token a byte, whereas digits, code and scripts such
as Chinese need many more tokens a character than English prose. Beside the bytes, a template may add tokens to each
prompt or message.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

_SHORT = 64
"""Bytes of a part below which what the template adds outweighs the text."""
_ADDED = 4
"""Tokens that a template is assumed to add to a part before any were seen."""
_MARGIN = 1.2
_USUAL = 0.25
"""Tokens a byte of English prose, assumed for estimates before any were seen."""


def message_text(message: Mapping[str, Any]) -> str:
    """The text of a chat message; of a list of parts, those that are text."""
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return content if isinstance(content, str) else ""


class PromptSize(NamedTuple):
    """The size of one or several prompts."""

    tokens: int = 0
    """Of those that are lists of token ids."""
    bytes: int = 0
    parts: int = 0
    """Texts and messages."""

    @classmethod
    def of(cls, prompts: Iterable[Any]) -> PromptSize:
        """Of strings, lists of token ids, and lists of messages."""
        tokens = size = parts = 0
        for prompt in prompts:
            if isinstance(prompt, str):
                size, parts = size + _bytes(prompt), parts + 1
            elif prompt and isinstance(prompt[0], int):
                tokens += len(prompt)
            else:
                for message in prompt:
                    size += _bytes(message_text(message))
                parts += len(prompt)
        return cls(tokens, size, parts)

    def __add__(self, other: PromptSize) -> PromptSize:  # type: ignore[override]
        return PromptSize(self.tokens + other.tokens, self.bytes + other.bytes, self.parts + other.parts)


class TokenRatio:
    """Learns from prompts whose tokens the provider has counted."""

    def __init__(self) -> None:
        self._most: float | None = None
        """The most tokens a byte seen in long parts."""
        self._most_short: float | None = None
        """The most tokens seen in a short part."""
        self._least = 1.0
        """The fewest tokens a byte seen in long parts."""
        self._bytes = self._tokens = 0
        self.revision = 0
        """Changes whenever :meth:`most` does."""

    @property
    def known(self) -> bool:
        """Whether the provider has counted any prompt."""
        return self._bytes > 0

    def learn(self, size: PromptSize, counted: int) -> None:
        """The provider has counted so many tokens in prompts of this size."""
        counted -= size.tokens
        if counted <= 0 or not size.parts or not size.bytes:
            return
        self._bytes += size.bytes
        self._tokens += counted
        before = self._most, self._most_short
        if size.bytes >= _SHORT * size.parts:
            self._most = max(self._most or 0.0, counted / size.bytes)
            self._least = min(self._least, counted / size.bytes)
        else:
            self._most_short = max(self._most_short or 0.0, counted / size.parts)
        self.revision += before != (self._most, self._most_short)

    def most(self, size: PromptSize) -> int:
        """The tokens that prompts may have at most: one a byte until the first are counted."""
        added = (_MARGIN * self._most_short if self._most_short is not None else _ADDED) * size.parts
        if size.bytes < _SHORT * size.parts:
            text = 0.0 if self._most_short is not None else size.bytes
        else:
            text = size.bytes * (1.0 if self._most is None else _MARGIN * self._most)
        return size.tokens + math.ceil(text + added)

    def least(self, size: PromptSize) -> int:
        """The fewest tokens that texts had so far for as many bytes; 0 where no long ones were seen."""
        return size.tokens + (0 if self._most is None else int(size.bytes * self._least))

    def likely(self, size: PromptSize) -> int:
        """The tokens that prompts probably have."""
        ratio = self._tokens / self._bytes if self._bytes else _USUAL
        return size.tokens + max(size.parts, round(size.bytes * ratio))


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
