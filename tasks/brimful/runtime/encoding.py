"""Output on terminals whose encoding is not UTF-8: an error handler that writes ASCII in place of what they lack.

Imports only the standard library, since it is imported before everything else.
"""

from __future__ import annotations

import codecs
import sys

_HANDLER = "brimful.plain"
_PLAIN = {
    "…": "...", "–": "-", "—": "-", "→": "->", "×": "x", "·": "-", "≥": ">=", "≤": "<=", "█": "#", "░": ".", "━": "=",
    "╸": "=", "╺": "-", "✓": "ok", "‘": "'", "’": "'", "“": '"', "”": '"', "\u00a0": " ", "±": "+-", "µ": "u",
}  # fmt: skip
"""Of the characters in our own texts. Others, such as those of a prompt, are written as escapes: ``\\u4f60``."""


def use_plain_text() -> None:
    """Let standard output and standard error replace what their encodings lack, so that no print fails on it."""
    codecs.register_error(_HANDLER, _replace)
    for stream in (sys.stdout, sys.stderr):
        if (reconfigure := getattr(stream, "reconfigure", None)) is not None:  # not None, nor a test's own stream
            reconfigure(errors=_HANDLER)


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    part = error.object[error.start : error.end]
    text = "".join(_PLAIN.get(char) or char.encode("ascii", "backslashreplace").decode() for char in part)
    return text, error.end
