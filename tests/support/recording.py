"""``docs/progress.svg``: the progress display of a run, drawn by the program itself.

``PYTHONPATH=tests python -m support.recording`` draws it again. The run is computed, not timed, so that each drawing is
the same: 1,291 prompts, one an API call of 1.2 s, through 16 slots and 600 starts a minute. Words, bars, colours and
forecasts are those of ``brimful.run.display``.
"""

from __future__ import annotations

import io
from pathlib import Path
from xml.sax.saxutils import escape

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from brimful.packing.units import DriveStatus
from brimful.run.display.forecast import Forecast
from brimful.run.display.progress import Progress
from brimful.run.display.terminal import lines
from brimful.state.status import Status
from support.house import ROOT
from support.runs import fleet

PICTURE = ROOT / "docs" / "progress.svg"
PROMPTS, SLOTS, STARTS, WINDOW_S, CALL_S, TOKENS = 1291, 16, 600, 60.0, 1.2, 21
SHOWN_S = (3, 9, 15, 21, 27, 33, 39, 44, 48, 54, 61, 70, 80, 90, 100, 106, 113, 120, 124, 127)
"""Seconds of the run that are shown, each for :data:`FRAME_S`."""
FRAME_S = 0.8
WIDTH, LEFT, TOP, CELL, ROW = 112, 18, 62, 8.4, 22
COMMAND = "$ brimful run prompts.jsonl -o rollouts.jsonl --max-tokens 16 --pack off"
_STYLES = """
    .card { fill: #ffffff; stroke: #d0d7de } .p { fill: #1f2328 } .dim { fill: #6e7781 } .bold { font-weight: 700 }
    .cyan { fill: #1b7c83 } .green { fill: #1a7f37 } .red { fill: #cf222e } .yellow { fill: #9a6700 }
    .bar { fill: #d0d7de }
    @media (prefers-color-scheme: dark) {
      .card { fill: #0d1117; stroke: #30363d } .p { fill: #e6edf3 } .dim { fill: #8b949e } .cyan { fill: #39c5cf }
      .green { fill: #3fb950 } .red { fill: #f85149 } .yellow { fill: #d29922 } .bar { fill: #30363d }
    }"""


def begun(now: float) -> list[float]:
    """When each call that has begun by ``now`` did so: as soon as a slot and a start were free."""
    starts: list[float] = []
    while len(starts) < PROMPTS:
        place = len(starts)
        earliest = place / SLOTS * CALL_S
        if place >= SLOTS:
            earliest = starts[place - SLOTS] + CALL_S
        if place >= STARTS:
            earliest = max(earliest, starts[place - STARTS] + WINDOW_S)
        if earliest > now:
            break
        starts.append(earliest)
    return starts


def figures(now: float) -> tuple[Progress, Status]:
    starts = begun(now)
    done = sum(start + CALL_S <= now for start in starts)
    active, waiting = len(starts) - done, PROMPTS - len(starts)
    recent = [start for start in starts if start > now - WINDOW_S]
    next_s = max(0.0, recent[0] + WINDOW_S - now) if len(recent) >= STARTS else 0.0
    drive = DriveStatus(queued=min(128, active + waiting), requests=done, attempts=len(starts))
    progress = Progress(now, PROMPTS, PROMPTS, done, 0, done, done, done * TOKENS, drive=drive)
    status = fleet(
        waiting=min(112, waiting), slots_used=active, starts_used=len(recent), slots=SLOTS, starts=STARTS,
        next_start_s=next_s,
    )  # fmt: skip
    return progress, status


def drawing() -> str:
    """The animation as SVG; where motion is reduced, its middle."""
    console = Console(
        file=io.StringIO(), width=WIDTH, force_terminal=True, color_system="standard", no_color=False,
        legacy_windows=False,
    )  # fmt: skip
    forecast, frames = Forecast(), []
    for second in range(1, SHOWN_S[-1] + 1):
        progress, status = figures(second)
        shown = lines(console, progress, status, *forecast.update(progress, status))
        if second in SHOWN_S:
            frames.append("".join(_row(console, text, place) for place, text in enumerate(shown)))
    length = len(frames) * FRAME_S
    width, height = round(2 * LEFT + WIDTH * CELL), TOP + ROW * 3
    share = 100 / len(frames)
    classes = ["f still" if place == len(frames) // 3 else "f" for place in range(len(frames))]
    drawn = "\n".join(
        f'  <g class="{kind}" style="animation-delay: {place * FRAME_S:.1f}s">{frame}</g>'
        for place, (kind, frame) in enumerate(zip(classes, frames, strict=True))
    )
    typed = f'textLength="{len(COMMAND) * CELL:.1f}" xml:space="preserve">{escape(COMMAND)}'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" \
aria-label="The progress display of a run" font-family="ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace" \
font-size="14">
  <style>{_STYLES}
    .f {{ visibility: hidden; animation: {length:.1f}s step-end infinite shown }}
    @keyframes shown {{ 0% {{ visibility: visible }} {share:.3f}% {{ visibility: hidden }} }}
    @media (prefers-reduced-motion: reduce) {{ .f {{ animation: none }} .still {{ visibility: visible }} }}
  </style>
  <rect class="card" x="1" y="1" width="{width - 2}" height="{height - 2}" rx="8"/>
  <text class="p bold" x="{LEFT}" y="34" {typed}</text>
{drawn}
</svg>
"""


def _row(console: Console, line: Text, place: int) -> str:
    """A line of the display: a text for each run of one style, at its column."""
    column, parts = 0, []
    for segment in line.render(console):
        words = segment.text.rstrip("\n")
        if words.strip():
            style = segment.style
            colour = style.color.name if style is not None and style.color is not None else ""
            kinds = [colour if colour in ("cyan", "green", "red", "yellow") else ""]
            kinds += [name for name in ("bold", "dim") if style is not None and getattr(style, name)]
            if colour and not kinds[0]:
                kinds[0] = "bar"  # the rest of the bar
            names = " ".join(["p", *filter(None, kinds)])
            size = cell_len(words) * CELL
            parts.append(
                f'<text class="{names}" x="{LEFT + column * CELL:.1f}" y="{TOP + place * ROW}" '
                f'textLength="{size:.1f}" xml:space="preserve">{escape(words)}</text>'
            )
        column += cell_len(segment.text)
    return "".join(parts)


if __name__ == "__main__":
    Path(PICTURE).write_text(drawing(), "utf-8")
