"""The front door beside litellm's proxy, with one process and with two, on the same machine and mock gateway.

``python ops/bench --parts door`` takes about five minutes, with ``--quick`` two. It installs litellm into an
environment of its own, and without it measures brimful alone.

The gateway has 16 slots and takes 100 starts in any 10 s. OpenAI's client asks for 500 chats at once, and tries again
what it is refused. Then one request at a time goes through each door while slots are free, in turn with one to the
gateway itself: the difference is what the door adds.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import aiohttp
from doors import Doors, brimful, litellm, litellm_commands, litellm_version
from openai import AsyncOpenAI
from runs import gateway, ledger

from brimful_worker.local.server.valkey import Valkey

MODEL = "llama-8b"
SLOTS, STARTS, WINDOW_S = 16, 100, 10.0
LATENCY_S = 0.2
RETRIES = 40
"""By the client, of a request that a door refuses."""


@dataclass(frozen=True)
class Size:
    requests: int = 500
    one_by_one: int = 300
    processes: tuple[int, ...] = (1, 2)


FULL, QUICK = Size(), Size(requests=200, one_by_one=200)


@dataclass
class Figures:
    """Of one contender with one number of processes. CPU is user + system, of the door's processes."""

    seconds: float
    answered: int
    refused: int
    """429s at the gateway."""
    most_in_window: int
    """Arrivals at the gateway."""
    peak_active: int
    cpu_ms: float
    """Per answered request, of 500 at once."""
    redis_ms: float
    added_p50_ms: float = 0.0
    """To a request that finds a free slot, one at a time."""
    added_p99_ms: float = 0.0
    single_cpu_ms: float = 0.0
    """Per request, one at a time."""


async def flood(doors: Doors, count: int) -> int:
    """Ask for so many chats at once, in turn at each door. Returns how many were answered."""
    shared: Any = {"api_key": doors.key, "max_retries": RETRIES, "timeout": 300}
    clients = [AsyncOpenAI(base_url=url, **shared) for url in doors.urls]

    async def ask(number: int) -> bool:
        messages: Any = [{"role": "user", "content": f"What is {number} squared?"}]
        client = clients[number % len(clients)]
        try:
            answer = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=8)
        except Exception as error:
            print(f"{type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
            return False
        return bool(answer.choices[0].message.content)

    answered = sum(await asyncio.gather(*(ask(number) for number in range(count))))
    for client in clients:
        await client.close()
    return answered


async def added(direct: str, doors: Doors, count: int) -> tuple[float, float]:
    """Median and 99th percentile, in ms, of what a door adds to a request, one at a time."""
    (url,) = doors.urls
    took: dict[str, list[float]] = {direct: [], url: []}
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {doors.key}"}) as http:
        for number in range(count + 20):
            for base, times in took.items():
                body = {"model": MODEL, "messages": [{"role": "user", "content": f"{number}"}], "max_tokens": 8}
                began = time.perf_counter()
                async with http.post(f"{base}/chat/completions", json=body) as answer:
                    await answer.read()
                    answer.raise_for_status()
                times.append((time.perf_counter() - began) * 1000)
    plain = median(took[direct][20:])
    through = [each - plain for each in took[url][20:]]
    return round(median(through), 2), round(quantiles(through, n=100)[98], 2)


def measure(start: Any, processes: int, size: Size, folder: Path) -> Figures:
    """``start``: a function of :mod:`doors`."""
    with ExitStack() as stack:
        server = stack.enter_context(Valkey(folder / "busy"))
        url = stack.enter_context(
            gateway(slots=SLOTS, starts=STARTS, window_s=WINDOW_S, latency_s=LATENCY_S, per_token_s=0.0)
        )
        doors: Doors = stack.enter_context(start(processes, server, url, SLOTS, STARTS, WINDOW_S, folder))
        cpu, redis_cpu, began = doors.cpu_s(), doors.redis_cpu_s(), time.monotonic()
        answered = asyncio.run(flood(doors, size.requests))
        seconds = time.monotonic() - began
        seen = ledger(url)
        found = Figures(
            seconds=round(seconds, 1),
            answered=answered,
            refused=seen["rate_limited"],
            most_in_window=seen["most_arrivals_in_window"],
            peak_active=seen["peak_active"],
            cpu_ms=round((doors.cpu_s() - cpu) * 1000 / max(1, answered), 2),
            redis_ms=round((doors.redis_cpu_s() - redis_cpu) * 1000 / max(1, answered), 2),
        )
    if processes > 1:
        return found
    with ExitStack() as stack:
        server = stack.enter_context(Valkey(folder / "free"))
        starts = 100 * size.one_by_one
        url = stack.enter_context(gateway(slots=SLOTS, starts=starts, window_s=60.0, latency_s=0.0, per_token_s=0.0))
        doors = stack.enter_context(start(1, server, url, SLOTS, starts, 60.0, folder))
        cpu = doors.cpu_s()
        found.added_p50_ms, found.added_p99_ms = asyncio.run(added(url, doors, size.one_by_one))
        found.single_cpu_ms = round((doors.cpu_s() - cpu) * 1000 / (size.one_by_one + 20), 2)
    return found


def document(figures: dict[str, Figures], size: Size, peer: str, busy: float) -> str:
    def row(title: str, *cells: str) -> str:
        return f"| {title} | {' | '.join(cells)} |\n"

    names, found = list(figures), list(figures.values())
    alone = [each.added_p50_ms > 0 for each in found]
    table = row("", *names) + row("---", *["---:"] * len(names))
    table += row(f"seconds for {size.requests} chats", *(f"{each.seconds:.1f}" for each in found))
    table += row("of them answered", *(str(each.answered) for each in found))
    table += row("429s at the gateway", *(str(each.refused) for each in found))
    table += row(f"most arrivals in any {WINDOW_S:g} s, of {STARTS}", *(str(each.most_in_window) for each in found))
    table += row(f"most active at once, of {SLOTS}", *(str(each.peak_active) for each in found))
    table += row("CPU of the door a request", *(f"{each.cpu_ms:.1f} ms" for each in found))
    table += row("CPU of Redis a request", *(f"{each.redis_ms:.1f} ms" for each in found))
    for title, name in (("added to a request, median", "added_p50_ms"), ("99th percentile", "added_p99_ms")):
        cells = [f"{getattr(each, name):.1f} ms" if one else "" for each, one in zip(found, alone, strict=True)]
        table += row(title, *cells)
    cells = [f"{each.single_cpu_ms:.1f} ms" if one else "" for each, one in zip(found, alone, strict=True)]
    table += row("CPU of the door a request, one at a time", *cells)
    windows, rest = divmod(size.requests - 1, STARTS)
    ideal = windows * WINDOW_S + (rest // SLOTS + 1) * LATENCY_S
    return TEXT.format(
        table=table,
        latency=LATENCY_S,
        ideal=ideal,
        requests=size.requests,
        one_by_one=size.one_by_one,
        peer=peer,
        busy=busy,
    )


TEXT = """# The front door beside litellm's proxy

One contender after the other, each with an empty Valkey and a mock gateway of 16 slots and 100 starts in any 10 s that
answers after {latency} s. OpenAI's client asks for {requests} chats at once, and tries again what it is refused (40
times, with its own pauses); the limits allow {ideal:.1f} s. Two processes are two servers on one Valkey, asked in turn.
The machine's load when it began was {busy:.1f}.

{table}
The last three rows: {one_by_one} requests, one at a time, with free slots and no limit that binds, in turn with as many
to the gateway itself, whose median is subtracted. CPU is that of all processes of the door in that time, what it uses
while nothing happens included. brimful's clients have no tokens here; where [callers](../serve.md#callers) wait at
two front doors, each of these reports them to Redis every 0.1 s, so that weights hold over both.

{peer}
"""

PEER = """litellm {version} has `max_parallel_requests: 16` and `rpm: 600` for the model, the settings nearest to these
limits, the Valkey for what its processes share, and no database. Its routing strategy is the default, under which
`rpm` is a weight. Others (`usage-based-routing-v2`) refuse what exceeds it in a minute, and were not measured."""
NO_PEER = "litellm could not be installed: {reason}."


def main(quick: bool = False) -> dict[str, Any]:
    """Returns ``{"markdown": …, "figures": …}``."""
    size, busy = QUICK if quick else FULL, os.getloadavg()[0]
    contenders: dict[str, Any] = {"brimful": brimful}
    try:
        commands = litellm_commands()
        contenders["litellm"] = litellm(commands)
        peer = PEER.format(version=litellm_version(commands))
    except OSError as error:
        peer = NO_PEER.format(reason=error)
    figures = {}
    with tempfile.TemporaryDirectory(prefix="brimful-door-") as name:
        for processes in size.processes:
            for contender, start in contenders.items():
                folder = Path(name) / f"{contender}-{processes}"
                folder.mkdir()
                title = f"{contender}, {processes} process{'es' if processes > 1 else ''}"
                figures[title] = measure(start, processes, size, folder)
                print(f"{title}: {figures[title]}", file=sys.stderr)
    found = {title: asdict(each) for title, each in figures.items()}
    return {"markdown": document(figures, size, peer, busy), "figures": found}
