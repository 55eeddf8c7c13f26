"""Thousands of single requests awaited at once by one ``AsyncFleet``: what they cost the event loop that awaits them.

``python ops/bench --parts awaited`` takes about a minute.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from runs import gateway
from task_worker import Contender, Load, Worker

from brimful import AsyncFleet
from brimful.state.redis_url import sync_redis_client
from brimful_worker.local.server.valkey import Valkey

_TICK_S = 0.005
_SLOTS = 256


@dataclass(frozen=True)
class Figures:
    requests: int
    seconds: float
    lag_ms_median: float
    lag_ms_p99: float
    lag_ms_most: float
    """How late a timer of the event loop was, each five milliseconds."""
    connections: int
    """Most connections to Redis that the process had open."""
    cpu_ms: float
    """User + system of the process, a request."""


async def _ticks(lags: list[float]) -> None:
    while True:
        due = time.monotonic() + _TICK_S
        await asyncio.sleep(_TICK_S)
        lags.append(time.monotonic() - due)


async def _connections(url: str, others: int, most: list[int]) -> None:
    with sync_redis_client(url) as client:
        while True:
            listed: Any = await asyncio.to_thread(client.client_list)
            most.append(len(listed) - 1 - others)
            await asyncio.sleep(0.5)


async def ask(url: str, requests: int) -> Figures:
    with sync_redis_client(url) as client:
        listed: Any = client.client_list()
    lags: list[float] = []
    most: list[int] = []
    async with AsyncFleet(url) as fleet:
        await fleet.sample("the first connects", max_tokens=4)
        watching = [asyncio.create_task(_ticks(lags)), asyncio.create_task(_connections(url, len(listed) - 1, most))]
        began, cpu = time.monotonic(), _cpu()
        answers = await asyncio.gather(*(fleet.sample(f"Hello {n}", max_tokens=4) for n in range(requests)))
        seconds, cpu = time.monotonic() - began, _cpu() - cpu
        for one in watching:
            one.cancel()
    if sum(len(answer["choices"]) for answer in answers) != requests:
        raise SystemExit("some requests have no completion")
    lags.sort()
    return Figures(
        requests=requests,
        seconds=round(seconds, 1),
        lag_ms_median=round(lags[len(lags) // 2] * 1000, 1),
        lag_ms_p99=round(lags[int(len(lags) * 0.99)] * 1000, 1),
        lag_ms_most=round(lags[-1] * 1000, 1),
        connections=max(most),
        cpu_ms=round(cpu / requests * 1000, 2),
    )


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


TEXT = """# Thousands awaited at once

{requests:,} calls of `AsyncFleet.sample` at once on one event loop, one worker with {slots} slots, requests of 0.2 s.

| | |
| --- | ---: |
| until the last completion | {seconds:.1f} s |
| the loop's lag: median | {lag_ms_median:.1f} ms |
| 99th percentile | {lag_ms_p99:.1f} ms |
| longest | {lag_ms_most:.1f} ms |
| CPU of the client a request | {cpu_ms:.2f} ms |
| most connections to Redis | {connections} |

The lag is how late a timer of five milliseconds was, beside the worker, Redis and the gateway on the same machine,
whose load was {busy:.1f} when it began. The longest is the first step of all coroutines.
"""


def main(quick: bool = False) -> dict[str, Any]:
    """Returns ``{"markdown": …, "figures": …}``."""
    busy = os.getloadavg()[0]
    worker = Contender("brimful", "interactive", "brimful.sample", (sys.executable, "-m", "brimful.cli", "worker"))
    with (
        tempfile.TemporaryDirectory(prefix="brimful-awaited-") as name,
        Valkey(Path(name) / "server") as server,
        gateway(slots=None, starts=None, per_token_s=0.0, latency_s=0.2) as url,
        Worker(worker, server, url, Load(_SLOTS, 0.2, 0), Path(name)),
    ):
        found = asdict(asyncio.run(ask(server.url, 1000 if quick else 5000)))
    return {"markdown": TEXT.format(slots=_SLOTS, busy=busy, **found), "figures": found}
