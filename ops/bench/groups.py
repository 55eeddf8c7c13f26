"""Groups for RL trainers, with and without over-sampling, at a gateway whose latencies have a heavy tail.

64 prompts x 8 samples through ``AsyncFleet.group``, on real workers: seconds until the groups are full.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from runs import gateway, ledger

from brimful import AsyncFleet
from brimful.config import Settings
from brimful_worker.local.fleet import LocalFleet

PROMPTS, SAMPLES = 64, 8
LATENCY_S, TAIL = 0.5, 0.5
SLOTS = (640, 64)
WAYS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("8 of 8", {"pack": "off"}),
    ("8 of 9", {"oversample": 1}),
    ("8 of 10", {"oversample": 2}),
    ("8 of 12", {"oversample": 4}),
    ("n = 8 in one request", {"pack": "group"}),
)
TEXT = """# Groups with and without over-sampling

{prompts} prompts x {samples} samples through `AsyncFleet.group` and 2 workers, without a limit of starts. At the mock
gateway a sample takes {latency_s:g} s x u^-{tail:g}, u uniform in (0, 1]: a heavy tail with a median of
{median_s:.1f} s, a 99th percentile of {high_s:g} s and about {slowest_s:.0f} s for the slowest of {total}.
A request for several choices takes as long as its slowest. Medians of {rounds} rounds; seconds count from the call.
`8 of 10` is `oversample=2`: ten samples of each prompt are asked for, the first eight make the group, and the others
are cancelled."""
_LIMIT_S = 180.0
_READY_S = 60.0


@dataclass(frozen=True)
class Figures:
    """Medians over the rounds; seconds count from the call."""

    half_s: float
    """Until half of the groups were full."""
    all_s: float
    worst_s: float
    """The longest round's ``all_s``."""
    starts: float
    sampled: float
    """Samples that the provider finished."""
    closed: float
    """Requests that were cancelled on the wire."""


def main(quick: bool) -> dict[str, Any]:
    rounds = 2 if quick else 5
    found: dict[str, dict[str, Any]] = {}
    for slots in SLOTS:
        with _fleet(slots) as (redis_url, url):
            found[str(slots)] = {name: asdict(_measure(redis_url, url, way, rounds)) for name, way in WAYS}
    return {"markdown": _page(found, rounds), "figures": found}


@contextmanager
def _fleet(slots: int) -> Iterator[tuple[str, str]]:
    """Two workers and a gateway with as many slots. Yields the URLs of Redis and of the gateway."""
    options = {"latency_s": LATENCY_S, "per_token_s": 0.0, "tail": TAIL, "slots": slots, "starts": None}
    with gateway(**options) as url, tempfile.TemporaryDirectory(prefix="brimful-bench-") as folder:
        os.environ |= {"ACS_API_BASE": url, "ACS_API_KEY": "sk-bench"}
        fleet = LocalFleet(Settings.load(state_dir=Path(folder), slots=slots, starts=0), workers=2)
        fleet.start()
        try:
            wait_until(lambda: fleet.ready_workers() == 2)
            yield fleet.redis_url, url
        finally:
            fleet.stop()


def _measure(redis_url: str, url: str, way: dict[str, Any], rounds: int) -> Figures:
    results = [asyncio.run(_round(redis_url, url, way)) for _ in range(rounds)]
    half, everything, starts, sampled, closed = zip(*results, strict=True)
    found = Figures(median(half), median(everything), max(everything), median(starts), median(sampled), median(closed))
    print(f"groups: {way}: {found}", file=sys.stderr)
    return found


async def _round(redis_url: str, url: str, way: dict[str, Any]) -> tuple[float, float, int, int, int]:
    before = _counts(url)
    prompts = [f"question {place}" for place in range(PROMPTS)]
    full: list[float] = []
    async with AsyncFleet(redis_url) as client, asyncio.timeout(_LIMIT_S):
        began = time.monotonic()
        async with client.group(prompts, n=SAMPLES, max_tokens=8, **way) as groups:
            async for group in groups:
                if not group.full:
                    raise SystemExit(f"group {group.id} is not full: {group.missing}")
                full.append(time.monotonic() - began)
    if len(full) != PROMPTS:
        raise SystemExit(f"{len(full)} of {PROMPTS} groups")
    wait_until(lambda: not ledger(url)["active"])
    starts, sampled, closed = (after - was for after, was in zip(_counts(url), before, strict=True))
    return full[PROMPTS // 2 - 1], full[-1], starts, sampled, closed


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + _READY_S
    while not condition() and time.monotonic() < end:
        time.sleep(0.1)


def _counts(url: str) -> tuple[int, int, int]:
    found = ledger(url)
    return found["arrivals"], found["rollouts"]["total"], found["gone"]


def _page(found: dict[str, dict[str, Any]], rounds: int) -> str:
    total = PROMPTS * SAMPLES
    median_s, high_s, slowest_s = (LATENCY_S * u**-TAIL for u in (0.5, 0.01, 1 / total))
    sizes = {"median_s": median_s, "high_s": high_s, "slowest_s": slowest_s, "total": total, "rounds": rounds}
    lines = [TEXT.format(prompts=PROMPTS, samples=SAMPLES, latency_s=LATENCY_S, tail=TAIL, **sizes)]
    for slots, rows in found.items():
        base = rows[WAYS[0][0]]["all_s"]
        lines += [
            "",
            f"## {slots} slots",
            "",
            "| samples | half of the groups, s | all 64 groups, s | beside 8 of 8 | worst round, s | requests | "
            "samples finished | cancelled on the wire |",
            "|---|---:|---:|---:|---:|---:|---:|---:|",
        ]
        lines += [
            f"| {name} | {row['half_s']:.1f} | {row['all_s']:.1f} | {row['all_s'] / base:.0%} | {row['worst_s']:.1f} "
            f"| {row['starts']:.0f} | {row['sampled']:.0f} | {row['closed']:.0f} |"
            for name, row in rows.items()
        ]
    return "\n".join(lines)
