"""How commands print: colour on terminals, unless NO_COLOR is set; messages on stderr."""

from __future__ import annotations

import os
import sys

import click


def coloured() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def say(text: str) -> None:
    print(f"brimful: {text}", file=sys.stderr, flush=True)


def ago(seconds: float) -> str:
    """``now``, ``42 s ago``, ``5 min ago``, ``7 h ago``, ``3 d ago``."""
    if seconds < 1:
        return "now"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


def paint(text: str, colour: str) -> str:
    return click.style(text, fg=colour) if coloured() else text
