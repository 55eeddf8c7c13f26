"""SVG charts for a run's page, without scripts, fonts or external files. Colours come from the page's CSS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

_HEIGHT = 190
FULL, HALF = 720, 480
"""Widths of a chart across the page and of one of two side by side, in SVG units (a font is 11 high)."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 14, 26


@dataclass(frozen=True)
class Series:
    """Equally spaced values, and a limit drawn as a dashed line."""

    values: Sequence[float]
    labels: Sequence[str]
    """One for each value, shown in its tooltip."""
    unit: str
    limit: float | None = None
    limit_name: str = ""
    marks: Sequence[int] = ()
    """Indexes of values before which an idle gap was left out."""


def area_chart(series: Series, wide: int = HALF) -> str:
    """Values over time as a filled line."""
    count = len(series.values)
    top = _ceiling(max([*series.values, (series.limit or 0) * 1.04, 1e-9]))
    width = (wide - _LEFT - _RIGHT) / max(1, count)

    def x(place: float) -> float:
        return _LEFT + place * width

    y = _scale(top)
    points = []
    for place, value in enumerate(series.values):
        points += [f"{x(place):.1f},{y(value):.1f}", f"{x(place + 1):.1f},{y(value):.1f}"]
    base = y(0)
    parts = [_axes(top, y, wide)]
    parts.append(
        f'<polygon class="area" points="{x(0):.1f},{base:.1f} {" ".join(points)} {x(count):.1f},{base:.1f}"/>'
        f'<polyline class="line" points="{" ".join(points)}"/>'
    )
    for mark in series.marks:
        parts.append(f'<line class="mark" x1="{x(mark):.1f}" x2="{x(mark):.1f}" y1="{_TOP}" y2="{base:.1f}"/>')
    if series.limit is not None:
        parts.append(_limit(y(series.limit), f"{series.limit_name} {series.limit:,.4g}", wide))
    for place, (value, label) in enumerate(zip(series.values, series.labels, strict=True)):
        parts.append(
            f'<rect class="tip" x="{x(place):.1f}" y="{_TOP}" width="{max(width, 0.5):.1f}" height="{base - _TOP:.1f}">'
            f"<title>{escape(label)}: {value:,.4g} {escape(series.unit)}</title></rect>"
        )
    ends = [(0, "start"), (count // 2, "middle"), (count - 1, "end")] if count > 2 else [(0, "start")]
    for place, anchor in ends:
        at = x(place + (1 if anchor == "end" else 0))
        parts.append(_word(at, _HEIGHT - 8, series.labels[place], anchor))
    return _svg("".join(parts), wide)


def histogram_chart(bars: Sequence[tuple[str, int]], marks: Sequence[tuple[float, str]], wide: int = HALF) -> str:
    """``bars``: label and count. ``marks``: a position among the bars (0 to their number) and its name."""
    top = _ceiling(max((count for _, count in bars), default=1))
    width = (wide - _LEFT - _RIGHT) / max(1, len(bars))
    y = _scale(top)
    parts = [_axes(top, y, wide)]
    step = max(1, len(bars) // (wide // 80))
    for place, (label, height) in enumerate(bars):
        left = _LEFT + place * width
        parts.append(
            f'<rect class="bar" x="{left + 0.5:.1f}" y="{y(height):.1f}" width="{max(0.5, width - 1):.1f}" '
            f'height="{y(0) - y(height):.1f}"><title>{escape(label)}: {height:,}</title></rect>'
        )
        if place % step == 0 and left < wide - 40:
            parts.append(_word(left, _HEIGHT - 8, label, "start"))
    for row, (mark, name) in enumerate(marks):
        at = _LEFT + mark * width
        parts.append(f'<line class="limit" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{y(0):.1f}"/>')
        anchor, shift = ("end", -4) if mark > len(bars) * 0.8 else ("start", 4)
        parts.append(_word(at + shift, _TOP + 9 + 13 * row, name, anchor, "limit-word"))
    return _svg("".join(parts), wide)


def bar_list(items: Sequence[tuple[str, int]], style: str = "") -> str:
    """HTML with a horizontal bar for each item, as long as its share of the total, and its count."""
    whole = sum(count for _, count in items) or 1
    return "".join(
        f'<div class="row"><span class="name">{escape(name)}</span><span class="track"><span class="fill {style}" '
        f'style="width:{100 * count / whole:.1f}%"></span></span><span class="count">{count:,}'
        f"<small> {100 * count / whole:.1f}&nbsp;%</small></span></div>"
        for name, count in items
    )


def _scale(top: float) -> Callable[[float], float]:
    return lambda value: _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * min(value, top) / top


def _axes(top: float, y: Callable[[float], float], wide: int) -> str:
    parts = []
    for share in (0.0, 0.5, 1.0):
        at = y(top * share)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{wide - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(_word(_LEFT - 8, at + 4, f"{top * share:,.4g}", "end"))
    return "".join(parts)


def _limit(at: float, name: str, wide: int) -> str:
    return f'<line class="limit" x1="{_LEFT}" x2="{wide - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>' + _word(
        wide - _RIGHT - 4, at - 5 if at > _TOP + 12 else at + 13, name, "end", "limit-word"
    )


def _word(x: float, y: float, text: str, anchor: str, style: str = "word") -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(inner: str, wide: int) -> str:
    style = ' class="full"' if wide == FULL else ""
    return f'<svg{style} viewBox="0 0 {wide} {_HEIGHT}" role="img" preserveAspectRatio="xMidYMid meet">{inner}</svg>'


def _ceiling(value: float) -> float:
    """The next round number for an axis: 1 to 8 times a power of ten."""
    power = 1.0
    while power * 10 <= value:
        power *= 10
    while power > value:
        power /= 10
    return next((power * step for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8) if power * step >= value), power * 10)
