"""A few lines at the bottom of a terminal that are drawn again and again, below all that is printed meanwhile.

Between two drawings the cursor stands at the block's first character, and all below it is the block. So a resize tears
nothing: a terminal that wraps old lines again moves the cursor with them, one that cuts them leaves it in its row, and
in both the next drawing begins there and erases what follows it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.file_proxy import FileProxy
from rich.segment import ControlType, Segment
from rich.text import Text

_TO_END_OF_LINE, _TO_END_OF_SCREEN = "\x1b[K", "\x1b[J"
_NO_WRAP, _WRAP = "\x1b[?7l", "\x1b[?7h"
_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"
LEAVE = f"\r{_TO_END_OF_LINE}\x1b7\x1b[B{_TO_END_OF_SCREEN}\x1b8{_WRAP}{_SHOW}"
"""Removes the block on the terminal. At the screen's first character, erasing to its end would make tmux keep a copy of
all lines in its history, so the first line is erased alone."""
_GAP = 3  # columns between two pairs


class Block(RenderHook):
    """Draws lines on the console's terminal. Whatever else is printed, also to stderr, takes their place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._proxy: FileProxy | None = None
        self.drawn = False

    def draw(self, lines: Sequence[Text]) -> None:
        """Put these lines in the place of those drawn before. What does not fit into the terminal is cut off."""
        if self._proxy is None:
            self._console.push_render_hook(self)
            self._proxy = FileProxy(self._console, sys.stderr)
            if sys.stdout is sys.stderr:  # a run with a hook, whose prints are no data
                sys.stdout = self._proxy
            sys.stderr = self._proxy
        self._console.print(_Drawing(lines[: max(1, self._console.height - 1)]), end="")
        self.drawn = True

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Called by rich before it prints."""
        if not self.drawn or isinstance(renderables[0], _Drawing):
            return renderables
        self.drawn = False
        return [_Codes(LEAVE), *renderables]

    def close(self) -> None:
        """Remove the block for good."""
        if self._proxy is not None:
            if self.drawn:
                self._console.print(_Codes(LEAVE), end="")
            self._console.pop_render_hook()
            for name in ("stdout", "stderr"):
                if getattr(sys, name) is self._proxy:
                    setattr(sys, name, self._proxy.rich_proxied_file)
            self._proxy = None
        self.drawn = False


class _Codes:
    """Control codes, which take no room."""

    def __init__(self, codes: str) -> None:
        self._codes = codes

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Segment(self._codes, None, [(ControlType.CLEAR,)])


class _Drawing:
    """The lines, and the cursor at the beginning of the first. Printed in one piece."""

    def __init__(self, lines: Sequence[Text]) -> None:
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # A terminal that has become narrower since its size was read cuts off what it would otherwise wrap.
        yield _Codes(_HIDE + _NO_WRAP + "\r")
        for place, line in enumerate(self._lines):
            if place:
                yield Segment.line()
            yield from line.render(console)
            yield _Codes(_TO_END_OF_LINE)
        up = len(self._lines) - 1
        yield _Codes(_TO_END_OF_SCREEN + _WRAP + "\r" + (f"\x1b[{up}A" if up else ""))


def fold(pairs: Sequence[Text], width: int) -> list[Text]:
    """The pairs in as few lines as they fit into, none of them divided. One that is wider than a line is cut."""
    lines: list[Text] = []
    for pair in pairs:
        part = pair.copy()
        part.truncate(width)
        if lines and cell_len(lines[-1].plain) + _GAP + cell_len(part.plain) <= width:
            lines[-1] = Text.assemble(lines[-1], " " * _GAP, part)
        else:
            lines.append(part)
    return lines
