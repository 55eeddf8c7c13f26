"""Parts of messages: texts cut or made printable, enumerations."""

from __future__ import annotations

from collections.abc import Sequence


def cut(text: str, most: int) -> str:
    """The text, or its first characters and an ellipsis: ``most`` characters in all."""
    return text if len(text) <= most else text[: most - 1] + "…"


def printable(text: str) -> str:
    """The text with ``?`` for each control character, so that text from elsewhere cannot control a terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def enumerated(words: Sequence[str], before_last: str = "and") -> str:
    """``a``, ``a and b``, ``a, b and c``; ``none`` without any."""
    if len(words) < 2:
        return words[0] if words else "none"
    return f"{', '.join(words[:-1])} {before_last} {words[-1]}"
