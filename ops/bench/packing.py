"""What packing gains: `brimful run --pack …` on one file, under one key's limits, at gateways of known latency.

``python ops/bench --parts packing`` takes about five minutes, with ``--quick`` about three. The figure is rollouts a
minute between the first request's start and the last one's end, so that starting Python does not count.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from runs import gateway, ledger, run

SLOTS, MAX_TOKENS = 16, 32
STARTS, WINDOW_S = 100, 10.0
"""600 starts a minute, as a window of ten seconds: half a minute's run would never use up a whole minute's starts."""
FREE = (600, 60.0)
"""The same as a window of a minute: it does not limit a few hundred requests, which is the hardest case for packing."""
_AT_ONCE = 2
"""Runs at the same time, each with its own gateway, fleet and limits: they mostly wait."""


@dataclass(frozen=True)
class Case:
    """The settings of one run."""

    about: str
    pack: str
    lines: int
    proportional: bool = False
    mixed: bool = False
    starts: tuple[int, float] = (STARTS, WINDOW_S)


@dataclass(frozen=True)
class Figure:
    case: Case
    seconds: float
    requests: int
    per_minute: float
    peak: int


def sweep(quick: bool) -> list[Case]:
    """Each takes about half a minute (``quick``: a third of it); the large sizes and ``auto`` use the same file."""
    seconds = 10 if quick else 30
    cases = [Case("sweep", "off", 20 * seconds)]
    cases += [Case("sweep", str(size), 10 * size * seconds) for size in (8, 32, 128)]
    return cases + [Case("sweep", pack, 32_000 if quick else 64_000) for pack in ("500", "1000", "auto")]


def others(quick: bool) -> list[Case]:
    """Where packing gains little or nothing: ``auto`` must not be slower than ``off``."""
    few = 300 if quick else 600
    return [
        case
        for pack in ("off", "auto")
        for case in (
            Case("latency in proportion to the choices", pack, few, proportional=True, starts=FREE),
            Case("20 lines", pack, 20, starts=FREE),
            Case("20 lines, in proportion", pack, 20, proportional=True, starts=FREE),
            Case("models and parameters mixed", pack, few, mixed=True, starts=FREE),
            Case("mixed, in proportion", pack, few, proportional=True, mixed=True, starts=FREE),
        )
    ]


def measure(case: Case) -> Figure:
    with tempfile.TemporaryDirectory(prefix="brimful-packing-") as name:
        folder = Path(name)
        prompts = folder / "prompts.jsonl"
        prompts.write_text("".join(json.dumps(line) + "\n" for line in _lines(case)), "utf-8")
        starts, window_s = case.starts
        options: dict[str, Any] = {"slots": SLOTS, "starts": starts, "window_s": window_s}
        options |= {"latency_s": 0.2, "per_token_s": 0.01, "batch_factor": 0.02, "models": []}
        if case.proportional:
            options |= {"latency_s": 0.0, "proportional": True}
        with gateway(**options) as url:
            env = {"BRIMFUL_STARTS": str(starts), "BRIMFUL_WINDOW_S": str(window_s)}
            done = run(prompts, folder / "out.jsonl", url, "--pack", case.pack, "--workers", "2", env=env)
            seen = ledger(url)
        seconds = _span(folder / "out.jsonl")
    if done.summary["succeeded"] != case.lines or seen["rate_limited"] or seen["rollouts"]["total"] != case.lines:
        raise SystemExit(f"{case}: {done.summary}, {seen['statuses']}")
    return Figure(case, round(seconds, 2), seen["arrivals"], round(case.lines / seconds * 60), seen["peak_active"])


def _span(out: Path) -> float:
    """Seconds between the first request's start and the last one's end."""
    first, last = float("inf"), 0.0
    with out.open("rb") as file:
        for line in file:
            record = json.loads(line)
            first, last = min(first, record["started_at"]), max(last, record["ended_at"])
    return last - first


def _lines(case: Case) -> Iterable[dict[str, Any]]:
    for place in range(case.lines):
        line: dict[str, Any] = {"id": f"p{place}", "prompt": f"Write line {place}.", "max_tokens": MAX_TOKENS}
        if case.mixed:
            line |= {
                "model": ("llama-8b", "llama-70b")[place % 2],
                "temperature": (0, 0.5, 1.0)[place % 3],
                "max_tokens": (16, 32, 64)[place // 6 % 3],
            }
        yield line


TEXT = """# Packing

A request takes 0.2 s + 0.01 s × max_tokens × (1 + 0.02 × (choices − 1)); {slots} slots;
{starts} starts in any {window} s, which is 600 a minute; {max_tokens} tokens a rollout.

| `--pack` | lines | requests | seconds | rollouts a minute | of the best fixed size | times `off` |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
{rows}

`off`, and the small sizes, are held by the starts. `auto` begins knowing nothing of the latency:
what it loses, it loses with its first requests.

Where packing pays less, or not at all (600 starts in any 60 s):

| lines | `off` | `auto` | |
| --- | ---: | ---: | --- |
{other_rows}
"""


def main(quick: bool = False) -> dict[str, Any]:
    """Returns ``{"markdown": …, "figures": …}``."""
    swept, cases = sweep(quick), others(quick)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        figures = list(pool.map(measure, [*swept, *cases]))
    sizes, rest = figures[: len(swept)], figures[len(swept) :]
    best = max(figure.per_minute for figure in sizes if figure.case.pack.isdigit())
    off = next(figure.per_minute for figure in sizes if figure.case.pack == "off")
    rows = [
        f"| {figure.case.pack} | {figure.case.lines:,} | {figure.requests:,} | {figure.seconds} "
        f"| {figure.per_minute:,} | {figure.per_minute / best:.1%} | {figure.per_minute / off:.1f} |"
        for figure in sizes
    ]
    half = len(rest) // 2
    other_rows = [
        f"| {before.case.lines}: {before.case.about} | {before.seconds} s, {before.requests} requests "
        f"| {after.seconds} s, {after.requests} requests | {before.seconds / after.seconds:.2f} times as fast |"
        for before, after in zip(rest[:half], rest[half:], strict=True)
    ]
    text = TEXT.format(
        slots=SLOTS,
        starts=STARTS,
        window=f"{WINDOW_S:g}",
        max_tokens=MAX_TOKENS,
        rows="\n".join(rows),
        other_rows="\n".join(other_rows),
    )
    return {"markdown": text, "figures": [asdict(figure) for figure in figures]}
