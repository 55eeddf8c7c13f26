"""How commands print: colour on terminals, unless NO_COLOR is set; messages on stderr. Alone, since all use it."""

from __future__ import annotations

import os
import sys

import click


def coloured() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def say(text: str) -> None:
    print(f"brimful: {text}", file=sys.stderr, flush=True)


def paint(text: str, colour: str) -> str:
    return click.style(text, fg=colour) if coloured() else text
