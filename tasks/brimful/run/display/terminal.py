"""The live display of a run on a terminal, drawn with rich."""

from __future__ import annotations

import os
from typing import Literal

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from brimful.run.display.display import Display
from brimful.run.display.progress import Progress, Rate, ReadStatus, cost_text, details, waiting_for_window, window_full
from brimful.run.display.summary import Summary, duration
from brimful.state.status import Status


class TerminalDisplay(Display):
    """A block of figures at the bottom of the terminal, redrawn by each :meth:`show`; messages stay above it."""

    def __init__(self, fleet: ReadStatus, *, table: bool = True, console: Console | None = None) -> None:
        # rich keeps bold and dim under NO_COLOR.
        colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
        self.console = console or Console(stderr=True, highlight=False, color_system=colours)
        super().__init__(table=table)
        self._fleet = fleet
        self._rate = Rate()
        self._live = Live(console=self.console, auto_refresh=False, transient=True)
        self._started = False

    def say(self, text: str) -> None:
        self.console.print(Text(f"brimful: {text}"), soft_wrap=True)

    async def show(self, progress: Progress) -> None:
        fleet = await self._fleet()
        if not self._started:
            self._live.start()
            self._started = True
        self._live.update(draw(progress, fleet, *self._rate.update(progress, fleet)), refresh=True)

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
        if self._started:
            self._live.stop()
            self._started = False


def draw(progress: Progress, fleet: Status | None, per_minute: float, seconds_left: float | None) -> Group:
    """Two or three lines: the bar, the figures, and a note while the run stops."""
    total = progress.total
    bar = Table.grid(padding=(0, 1))
    cells: list[Text | ProgressBar] = []
    if total:
        cells += [
            Text(f"{min(1.0, progress.done / total):4.0%}"),
            ProgressBar(total=total, completed=progress.done, width=36, complete_style="cyan", finished_style="green"),
        ]
    done = f"{progress.done:,}" + (f"/{total:,}" if total is not None else "")
    to_go = f", about {duration(seconds_left)} to go" if seconds_left is not None else ""
    cells.append(Text(f"{done} requests", style="bold"))
    cells.append(Text(duration(progress.seconds) + to_go, style="dim"))
    bar.add_row(*cells)
    budget = f" of {progress.budget:,}" if progress.budget else ""
    words = [
        ("rollouts", f"{progress.rollouts:,}"),
        ("", idle) if (idle := waiting_for_window(progress, fleet)) else ("a minute", f"{per_minute:,.0f}"),
        *details(progress, fleet),
        ("tokens", f"{progress.tokens:,}{budget}"),
        *([("cost", cost)] if (cost := cost_text(progress)) is not None else []),
    ]
    if progress.failed:
        words.append(("failed", f"{progress.failed:,}"))
    figures = Text()
    for label, value in words:
        figures.append(f"{label} " if label else "", style="dim")
        figures.append(value, style=_style(label, fleet))
        figures.append("   ")
    lines: list[Table | Text] = [bar, figures]
    if progress.stopping:
        running = f"{fleet.slots_used:,} requests" if fleet is not None else "requests"
        lines.append(Text(f"stopping: waiting for {running} on the wire; Ctrl-C again stops at once", style="yellow"))
    return Group(*lines)


def _style(label: str, fleet: Status | None) -> str:
    if label in ("failed", "workers"):
        return "red"
    if label in ("retries", "paused"):
        return "yellow"
    if fleet is None:
        return ""
    full = (label == "slots" and fleet.slots_used >= (fleet.slots or 0)) or (label == "window" and window_full(fleet))
    return "green" if full else ""
