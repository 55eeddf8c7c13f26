"""The live display of a run on a terminal."""

from __future__ import annotations

import os
from typing import Literal

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from brimful.run.display.display import Progress, Rate, ReadGauges, gauge_words, waiting_for_window
from brimful.run.display.gauges import Gauges
from brimful.run.display.summary import Summary, duration


class Terminal:
    """One block at the bottom of the terminal, drawn anew with each :meth:`show`; lines said stay above it."""

    def __init__(self, gauges: ReadGauges, *, table: bool = True, console: Console | None = None) -> None:
        # rich's own reading of NO_COLOR leaves bold and dim.
        colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
        self.console = console or Console(stderr=True, highlight=False, color_system=colours)
        self._gauges = gauges
        self._table = table
        self._rate = Rate()
        self._live = Live(console=self.console, auto_refresh=False, transient=True)
        self._started = False

    def say(self, text: str) -> None:
        self.console.print(Text(f"brimful: {text}"), soft_wrap=True)

    async def show(self, progress: Progress) -> None:
        gauges = await self._gauges()
        if not self._started:
            self._live.start()
            self._started = True
        self._live.update(draw(progress, gauges, *self._rate.update(progress, gauges)), refresh=True)

    def end(self, summary: Summary) -> None:
        self.close()
        if not self._table:
            return
        table = Table.grid(padding=(0, 2))
        rows = summary.rows()
        for label, value in rows:
            if label == "next":
                continue  # on a line of its own, whole, for copying
            style = {"failed": "red"}.get(label, "")
            table.add_row(Text(label, style="dim"), Text(value, style=style, overflow="fold"))
        self.console.print(table)
        if summary.next:
            self.console.print(Text.assemble(("next: ", "dim"), (summary.next, "cyan")), soft_wrap=True)

    def close(self) -> None:
        if self._started:
            self._live.stop()
            self._started = False


def draw(progress: Progress, gauges: Gauges | None, per_minute: float, eta_s: float | None) -> Group:
    """Two or three lines: the bar, the figures, and what is unusual."""
    total = progress.total
    bar = Table.grid(padding=(0, 1))
    parts: list[Text | ProgressBar] = []
    if total:
        parts += [
            Text(f"{min(1.0, progress.done / total):4.0%}"),
            ProgressBar(total=total, completed=progress.done, width=36, complete_style="cyan", finished_style="green"),
        ]
    done = f"{progress.done:,}" + (f"/{total:,}" if total is not None else "")
    parts.append(Text(f"{done} requests", style="bold"))
    parts.append(
        Text(
            duration(progress.seconds) + (f", about {duration(eta_s)} to go" if eta_s is not None else ""), style="dim"
        )
    )
    bar.add_row(*parts)
    figures = Text()
    budget = f" of {progress.budget:,}" if progress.budget else ""
    words = [
        ("rollouts", f"{progress.rollouts:,}"),
        ("", idle) if (idle := waiting_for_window(progress, gauges)) else ("a minute", f"{per_minute:,.0f}"),
        *gauge_words(progress, gauges),
        ("tokens", f"{progress.tokens:,}{budget}"),
        ("failed", f"{progress.failed:,}" if progress.failed else ""),
    ]
    for label, value in words:
        if value:
            figures.append(f"{label} " if label else "", style="dim")
            figures.append(value, style=_style(label, gauges))
            figures.append("   ")
    lines: list[Table | Text] = [bar, figures]
    if progress.stopping:
        flying = f"{gauges.slots_used:,} requests" if gauges is not None else "what is"
        lines.append(Text(f"stopping: waiting for {flying} on the wire; Ctrl-C again stops at once", style="yellow"))
    return Group(*lines)


def _style(label: str, gauges: Gauges | None) -> str:
    if label in ("failed", "workers"):
        return "red"
    if label in ("retries", "paused"):
        return "yellow"
    if gauges is not None and label == "slots" and gauges.slots_used >= gauges.slots:
        return "green"
    if gauges is not None and label == "window" and gauges.starts and gauges.starts_used >= 0.95 * gauges.starts:
        return "green"
    return ""
