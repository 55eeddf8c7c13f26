"""Colour on terminals only, and none if NO_COLOR is set. Alone, since several commands print in colour."""

from __future__ import annotations

import os
import sys

import click


def coloured() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str) -> str:
    return click.style(text, fg=colour) if coloured() else text
