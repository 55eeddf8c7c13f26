"""A pseudo-terminal with an emulator behind it: what a command shows on a screen, also while it is resized."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Sequence
from typing import Any

import pyte

from support.waiting import wait_until


class Wrapping(pyte.Screen):
    """Wraps its lines again when it becomes narrower, and moves the cursor with them, as tmux and most others do."""

    copies = 0
    """How often all of it was erased from its first character on: tmux then keeps a copy in its history."""

    def erase_in_display(self, how: int = 0, *arguments: Any, **more: Any) -> None:
        self.copies += how == 0 and (self.cursor.x, self.cursor.y) == (0, 0)
        super().erase_in_display(how, *arguments, **more)

    def resize(self, lines: int | None = None, columns: int | None = None) -> None:
        width, rows, row = columns or self.columns, list[str](), 0
        for place, shown in enumerate(self.display):
            text = shown.rstrip()
            if place == self.cursor.y:
                row = len(rows) + self.cursor.x // width
            rows += [text[start : start + width] for start in range(0, max(1, len(text)), width)]
        while len(rows) > row + 1 and not rows[-1]:
            rows.pop()
        above = max(0, len(rows) - (lines or self.lines))
        column = self.cursor.x % width
        super().resize(lines, columns)
        self.erase_in_display(2)
        for place, text in enumerate(rows[above:]):
            self.cursor_position(place + 1, 1)
            self.draw(text)
        self.cursor_position(row - above + 1, column + 1)


class Terminal:
    """A command on a terminal of its own; ``screen.display`` is what it shows. Killed at the end of a ``with``."""

    def __init__(
        self, command: Sequence[str], env: dict[str, str], *, columns: int = 80, wrapping: bool = False
    ) -> None:
        """stderr goes to the terminal, stdin and stdout are pipes."""
        self.screen = (Wrapping if wrapping else pyte.Screen)(columns, 30)
        self._stream = pyte.ByteStream(self.screen)
        self._fd, theirs = pty.openpty()
        os.set_blocking(self._fd, False)
        self.resize(columns)
        self.process = subprocess.Popen(
            command, env={**env, "TERM": "xterm-256color"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=theirs
        )
        os.close(theirs)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()
        os.close(self._fd)

    def resize(self, columns: int) -> None:
        self.read()
        self.screen.resize(columns=columns)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))

    def read(self) -> str:
        """Take what has been printed so far; returns the screen's text without its empty lines."""
        try:
            while data := os.read(self._fd, 65536):
                self._stream.feed(data)
        except OSError:  # nothing more, or the command has ended
            pass
        return "\n".join(line.rstrip() for line in self.screen.display if line.strip())

    def wait_for(self, words: str) -> str:
        """The screen's text once it holds ``words``."""
        return str(wait_until(lambda: text if words in (text := self.read()) else "", f"{words!r} on the screen", 90))
