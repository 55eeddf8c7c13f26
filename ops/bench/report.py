"""The figures as a Markdown table and an SVG chart for light and dark backgrounds."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Figures = Mapping[str, Mapping[str, Any]]


TEXT = """# brimful's admission beside its public peers

For those who choose a limiter, and for those who doubt our figures: `make bench` makes all of them again.

{about}

{tables}

![The same figures as bars](bench.svg)

Whole runs: [beside other programs](tools.md), [what packing brings](packing.md), [thousands in flight](thousands.md),
[a million lines](million.md).
Services: [single requests as tasks](tasks.md), [the front door beside litellm's proxy](door.md),
[thousands awaited at once](awaited.md), [groups for RL trainers](groups.md), [workers far from Redis](rtt.md),
[the limiter for any program](limiter.md).

How the cost of brimful's grants grows with waiters and processes (16 slots, holds of 5 s ± 50 %, {growth_s:g} s):

{growth}

What is done, for each limiter in its turn, on an empty server:

- **commands per grant, longest wait**: 96 coroutines in 4 processes around 16 slots, holds of 0.1 to 0.3 s, {rounds}
  rounds each; then {wide} coroutines, holds of {wide_hold_s:g} s ± 50 %, one round each. Commands are all that
  the clients send, MULTI and EXEC and greetings included. The ideal is first come, first served without any delay.
- **slots in use**: held slot-seconds of what 16 slots allow, from the first grant to the last of those 96 waiters.
- **a free slot**: the median wait without competition.
- **handoff**: one slot, two processes that both want it always, holds of 5 ms; median from the end in one process to
  the beginning in the other.
- **grants per second**: 1,000 slots, 3 processes of 100 coroutines each, holds of no length: the processors' bound.
- **fairness**: 4 processes of 24 coroutines, 16 slots, holds of 50 ms ± 50 %; Jain's index of the grants each one got.
- **whole again after SIGKILL**: a process that holds all 16 slots is killed; seconds until another one holds all 16.
- **peak held after FLUSHALL**: 16 held and 32 waiting in 2 processes when the server forgets everything.
- **most starts in a window**: 3 processes want more than {starts} starts in {window_s:g} s, for {windows} windows.
- **rate kept**: starts per second after the first window's fill, of what the limit allows. brimful widens the window by
  its guard (0.2 s + 1 %) against jitter on the way to the provider: at {window_s:g} s that costs {guard:.0%}, at a
  minute 1.3 %.

{notes}"""


def _plain(digits: int) -> Callable[[float], str]:
    return lambda value: f"{value:,.{digits}f}"


def columns(sizes: Mapping[str, Any]) -> list[tuple[str, str, Callable[[float], str]]]:
    """(key, heading, format), in the order of the tables."""
    wide, starts, window_s = sizes["wide"], sizes["window_starts"], sizes["window_s"]
    return [
        ("commands_96", "commands per grant, 96 waiters", _plain(1)),
        ("commands_wide", f"commands per grant, {wide} waiters", _plain(1)),
        ("wait_96", "longest wait ÷ ideal, 96 waiters", _plain(2)),
        ("wait_wide", f"longest wait ÷ ideal, {wide} waiters", _plain(2)),
        ("in_use_96", "slots in use while some wait", lambda value: f"{value:.0%}"),
        ("peak_96", "peak held, of 16", _plain(0)),
        ("free_ms", "a free slot, ms", _plain(1)),
        ("handoff_ms", "handoff between processes, ms", _plain(1)),
        ("grants_s", "grants per second", _plain(0)),
        ("jain", "fairness between processes (Jain)", _plain(2)),
        ("recovery_s", "whole again after SIGKILL, s", _plain(1)),
        ("memory_peak", "peak held after FLUSHALL, of 16", _plain(0)),
        ("window_most", f"most starts in any {window_s:g} s, of {starts}", _plain(0)),
        ("window_used", "rate kept", lambda value: f"{value:.0%}"),
    ]


def panels(sizes: Mapping[str, Any]) -> list[tuple[str, str, float | None, str]]:
    """(key, title, limit line, which direction is better) of each chart."""
    starts = sizes["window_starts"]
    return [
        ("commands_wide", f"Commands per grant, {sizes['wide']} waiters", None, "less is better"),
        ("wait_96", "Longest wait ÷ ideal, 96 waiters", 1.0, "1 is first come, first served"),
        ("grants_s", "Grants per second", None, "more is better"),
        ("recovery_s", "Whole again after SIGKILL, s", None, "less is better"),
        ("memory_peak", "Peak held after FLUSHALL", 16.0, "16 is the limit"),
        ("window_most", f"Most starts in any {sizes['window_s']:g} s", float(starts), f"{starts} is the limit"),
    ]


def cell(figures: Mapping[str, Any], key: str, form: Callable[[float], str]) -> str:
    if key not in figures:
        return "–"
    if figures[key] is None:
        return f"> {figures['recovery_bound_s']:.0f}" if key == "recovery_s" else "not served"
    return form(figures[key])


def tables(figures: Figures, cols: Sequence[tuple[str, str, Callable[[float], str]]]) -> str:
    """Figures as rows, limiters as columns: one table of those that limit slots, one of those that limit starts."""
    parts = []
    for key, title in (("commands_96", "Slots"), ("window_most", "Starts in a window")):
        names = [name for name, values in figures.items() if key in values]
        if not names:
            continue
        shown = [f"**{name}**" if name == "brimful" else name for name in names]
        lines = [f"| {title} | " + " | ".join(shown) + " |", "|---|" + "---:|" * len(names)]
        for column, heading, form in cols:
            if column.startswith("window_") == (key == "window_most"):
                cells = [cell(figures[name], column, form) for name in names]
                lines.append(f"| {heading} | " + " | ".join(cells) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def document(record: Mapping[str, Any]) -> str:
    """The report's Markdown, from the recorded figures."""
    sizes = record["sizes"]
    widened = sizes["window_s"] + 0.2 + 0.01 * sizes["window_s"]
    text = TEXT.format(
        about=record["about"],
        tables=tables(record["figures"], columns(sizes)),
        growth=growth_table(record["growth"]),
        starts=sizes["window_starts"],
        guard=1 - sizes["window_s"] / widened,
        notes="\n".join(f"- {note}" for note in record["notes"]),
        **{name: sizes[name] for name in ("rounds", "wide", "wide_hold_s", "window_s", "windows", "growth_s")},
    )
    return text.rstrip() + "\n"


def growth_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """How the cost of our limiter grows."""
    lines = ["| waiters | processes | commands per grant |", "|---:|---:|---:|"]
    lines += [f"| {row['waiters']:,} | {row['processes']} | {row['commands']:.1f} |" for row in rows]
    return "\n".join(lines)


_STYLE = """
    .card{fill:#fff;stroke:#d0d7de}.t{fill:#1f2328;font-weight:600;font-size:14px}.s{fill:#57606a;font-size:12px}
    .v{fill:#1f2328;font-size:12px}.bar{fill:#aab4c0}.ours{fill:#1f883d}.limit{stroke:#cf222e;stroke-dasharray:4 3}
    @media (prefers-color-scheme: dark){.card{fill:#0d1117;stroke:#30363d}.t,.v{fill:#e6edf3}.s{fill:#9da7b3}
    .bar{fill:#4b5563}.ours{fill:#3fb950}.limit{stroke:#ff7b72}}
"""
_LABEL, _BAR, _ROW, _WIDTH = 210, 190, 20, 500


def chart(figures: Figures, panels: Sequence[tuple[str, str, float | None, str]]) -> str:
    """Small bar charts, two in a row; ``panels`` are (key, title, limit line, which direction is better)."""
    drawn: list[str] = []
    column_y = [16, 16]
    for place, (key, title, limit, better) in enumerate(panels):
        rows = [(name, values) for name, values in figures.items() if key in values]
        side = place % 2
        body, height = _panel(rows, key, title, limit, better)
        drawn.append(f'<g transform="translate({16 + side * _WIDTH},{column_y[side]})">{body}</g>')
        column_y[side] += height
    height = max(column_y) + 8
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * _WIDTH + 20} {height}" role="img" '
        f'aria-label="brimful beside its peers" font-family="system-ui,Helvetica,Arial,DejaVu Sans,sans-serif">'
        f"<style>{_STYLE}</style>"
        f'<rect class="card" x="1" y="1" width="{2 * _WIDTH + 18}" height="{height - 2}" rx="10"/>'
        f"{''.join(drawn)}</svg>\n"
    )


def _panel(
    rows: Sequence[tuple[str, Mapping[str, Any]]], key: str, title: str, limit: float | None, better: str
) -> tuple[str, int]:
    known = [float(values[key]) for _, values in rows if values[key] is not None]
    beyond = [float(values.get("recovery_bound_s", 0)) for _, values in rows if values[key] is None]
    top = max([*known, *beyond, limit or 0, 1e-9])
    parts = [f'<text class="t" x="0" y="14">{html.escape(title)}</text><text class="s" x="0" y="30">{better}</text>']
    y = 40
    for name, values in rows:
        value = values[key]
        width = _BAR if value is None else max(2.0, _BAR * float(value) / top)
        missing = f"> {values['recovery_bound_s']:.0f}" if key == "recovery_s" else "not served"
        text = missing if value is None else f"{float(value):,.1f}".removesuffix(".0")
        kind = "ours" if name == "brimful" else "bar"
        parts.append(
            f'<text class="s" x="{_LABEL - 8}" y="{y + 12}" text-anchor="end">{html.escape(name)}</text>'
            f'<rect class="{kind}" x="{_LABEL}" y="{y + 2}" width="{width:.1f}" height="13" rx="2"/>'
            f'<text class="v" x="{_LABEL + width + 6:.1f}" y="{y + 13}">{text}</text>'
        )
        y += _ROW
    if limit is not None:
        x = _LABEL + _BAR * limit / top
        parts.append(f'<line class="limit" x1="{x:.1f}" x2="{x:.1f}" y1="38" y2="{y}"/>')
    return "".join(parts), y + 24
