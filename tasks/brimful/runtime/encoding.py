"""Standard streams: those that the caller has closed, and terminals whose encoding is not UTF-8.

Imports only the standard library, since it is imported before everything else.
"""

from __future__ import annotations

import codecs
import os
import sys

_HANDLER = "brimful.plain"
_PLAIN = {
    "…": "...", "–": "-", "—": "-", "→": "->", "×": "x", "·": "-", "≥": ">=", "≤": "<=", "█": "#", "░": ".", "━": "=",
    "╸": "=", "╺": "-", "✓": "ok", "‘": "'", "’": "'", "“": '"', "”": '"', "\u00a0": " ", "±": "+-", "µ": "u",
}  # fmt: skip
"""Of the characters in our own texts. Others, such as those of a prompt, are written as escapes: ``\\u4f60``."""


def open_closed_streams() -> None:
    """Replace standard streams that were closed by the caller (``>&-``), which Python leaves None.

    Else ``print`` would send messages for standard error to standard output. Standard input is empty then, what is
    written to standard error is dropped, and writing to standard output raises OSError, as data would be lost.
    """
    for name, flags, mode in (
        ("stdin", os.O_RDONLY, "r"),
        ("stdout", os.O_RDONLY, "w"),  # refuses what is written
        ("stderr", os.O_WRONLY, "w"),
    ):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), mode))


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
