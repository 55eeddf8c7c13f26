"""The live display of a run on a terminal, drawn with rich."""

from __future__ import annotations

import os
from typing import Literal

from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from brimful.run.display.block import LEAVE, Block, fold
from brimful.run.display.display import Display
from brimful.run.display.forecast import Forecast, window_full
from brimful.run.display.progress import Progress, ReadStatus, done_text, figures, to_go
from brimful.run.display.summary import Summary, duration
from brimful.state.status import Status
from brimful.words.counted import counted

_BAR = 36  # columns at most
_LEAST_BAR = 8


class TerminalDisplay(Display):
    """A block of figures at the bottom of the terminal, redrawn by each :meth:`show`; messages stay above it."""

    every_s = 0.5

    def __init__(self, fleet: ReadStatus, *, table: bool = True, console: Console | None = None) -> None:
        # rich keeps bold and dim under NO_COLOR.
        colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
        self.console = console or Console(stderr=True, highlight=False, color_system=colours)
        super().__init__(table=table)
        self._fleet = fleet
        self._forecast = Forecast()
        self._block = Block(self.console)

    def say(self, text: str) -> None:
        self.console.print(Text(f"brimful: {text}"), soft_wrap=True)

    async def show(self, progress: Progress) -> None:
        fleet = await self._fleet()
        self._block.draw(lines(self.console, progress, fleet, *self._forecast.update(progress, fleet)))

    def end(self, summary: Summary) -> None:
        self.close()
        if not self._table:
            return
        table = Table.grid(padding=(0, 2))
        for label, value in summary.rows():
            if label != "next":  # printed unwrapped below, for copying
                style = "red" if label == "failed" else ""
                table.add_row(Text(label, style="dim"), Text(value, style=style, overflow="fold"))
        self.console.print(table)
        if summary.next:
            self.console.print(Text.assemble(("next: ", "dim"), (summary.next, "cyan")), soft_wrap=True)

    def close(self) -> None:
        self._block.close()

    def abandon(self) -> None:
        if self._block.drawn:
            os.write(2, LEAVE.encode())


def lines(
    console: Console, progress: Progress, fleet: Status | None, per_minute: float, seconds_left: float | None
) -> list[Text]:
    """The bar, the figures, and a note while the run stops, in lines that fit into the console's width."""
    width = max(1, console.width - 1)  # a full line would leave the cursor in two places, by the terminal
    head = [Text(done_text(progress), style="bold"), Text(duration(progress.seconds), style="dim")]
    if seconds_left is not None:
        head.append(Text(to_go(seconds_left), style="dim"))
    if progress.total:
        rest = sum(len(text.plain) + 3 for text in head)
        head.insert(0, _bar(console, progress.done, progress.total, width - rest))
    pairs = []
    for label, value in figures(progress, fleet, per_minute):
        pairs.append(Text.assemble((f"{label} " if label else "", "dim"), (value, _style(label, fleet))))
    found = [*fold(head, width), *fold(pairs, width)]
    if progress.stopping:
        running = counted(fleet.slots_used, "API call") if fleet is not None else "API calls"
        note = [f"stopping: waiting for {running} on the wire", "Ctrl-C again stops at once"]
        found += fold([Text(text, style="yellow") for text in note], width)
    elif progress.held_by:
        note = ["held: `brimful runs resume` goes on", "Ctrl-C ends it"]
        found += fold([Text(text, style="yellow") for text in note], width)
    return found


def _bar(console: Console, done: int, total: int, room: int) -> Text:
    """The share that is done, and a bar where there is room for one."""
    text = Text(f"{min(1.0, done / total):4.0%}")
    columns = min(_BAR, room - len(text.plain) - 1)
    if columns < _LEAST_BAR:
        return text
    bar = ProgressBar(total=total, completed=done, width=columns, complete_style="cyan", finished_style="green")
    text.append(" ")
    for segment in console.render(bar):
        text.append(segment.text, style=segment.style)
    text.append(" " * (columns + 5 - len(text.plain)))  # without colours, the bar ends where the run is
    return text


def _style(label: str, fleet: Status | None) -> str:
    if label in ("failed", "workers"):
        return "red"
    if label in ("retries", "paused"):
        return "yellow"
    if fleet is None:
        return ""
    full = (label == "slots" and fleet.slots_used >= (fleet.slots or 0)) or (label == "window" and window_full(fleet))
    return "green" if full else ""
